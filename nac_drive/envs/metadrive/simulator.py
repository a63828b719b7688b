"""MetaDrive's engine: roads, traffic and physics, without its renderer.

This module alone imports metadrive, when a `Simulator` is made. A process can have one.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from nac_drive.envs.metadrive.lanes import road_map
from nac_drive.envs.metadrive.situation import RoadMap, Situation
from nac_drive.parallel.optional import optional_module

FRAMES_PER_SECOND = 10
"""Decisions in a second, MetaDrive's own rate: five steps of its physics each."""
IDM, PPO = "metadrive-idm", "metadrive-ppo"
"""Names of MetaDrive's drivers: the intelligent driver model, which changes lanes by rules, and its shipped PPO expert,
which sees 240 beams of a lidar."""
EXPERTS = (IDM, PPO)
ANNOUNCED = 50.0
"""Metres before a junction from which the turn is known."""
_SEED_OF_IDM = 0
_CRASHES = {
    "crash_vehicle": "car", "crash_human": "person", "crash_object": "object", "crash_building": "building",
    "crash_sidewalk": "sidewalk",
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """The roads and the traffic of an environment.

    MetaDrive's rules end an episode: at the destination, off the road, on a line that may not be crossed, and at a
    crash.
    """

    blocks: int | str = 3
    """Pieces of road after the first one: how many, or a letter for each, such as SCX (straight, bend, crossing)."""
    traffic: float = 0.1
    """Cars for each 10 metres of a lane, as MetaDrive's traffic_density."""


class Simulator:
    """One car of ours on MetaDrive's roads.

    Args:
        settings: Roads and traffic.
    """

    def __init__(self, settings: Settings) -> None:
        engine = _module("engine.base_engine").BaseEngine
        engine.try_pull_asset = staticmethod(lambda: None)  # 3D models, which it would download; nothing draws them
        self._env = _module("envs.metadrive_env").MetaDriveEnv(
            {
                "map": settings.blocks,
                "traffic_density": settings.traffic,
                "store_map": False,
                "force_destroy": True,  # a car that is used again remembers its last episode, in the fifth digit
                "agent_observation": _module("obs.observation_base").DummyObservation,
                "vehicle_config": {"lidar": {"num_lasers": 0}},
                "log_level": logging.CRITICAL,
            }
        )
        self._env.lazy_init()
        self._env.engine.map_manager.maps = defaultdict(type(None))  # a map of any seed, built when it is needed
        self._experts: dict[str, Callable[[], Any]] = {}

    def reset(self, seed: int) -> tuple[RoadMap, Situation]:
        """Begin an episode on the map of a seed."""
        env = self._env
        env.start_index, env.num_scenarios = seed, 1
        env.engine.global_config["start_seed"] = seed
        _, info = env.reset(seed=seed)
        self._experts = {}
        self._numbers: dict[str, int] = {}
        network = env.current_map.road_network
        return road_map(network.graph, env.agent.navigation.checkpoints), self._situation(info, 0.0, ended=False)

    def step(self, steering: float, pedal: float) -> Situation:
        """Advance by a tenth of a second.

        Args:
            steering: -1 to 1, left positive.
            pedal: -1, the brake, to 1, the gas.
        """
        _, reward, terminated, _, info = self._env.step(np.array((steering, pedal)))
        return self._situation(info, float(reward), ended=bool(terminated))

    def advice(self, expert: str) -> tuple[float, float]:
        """Return the steering and the pedal of an expert."""
        if expert not in self._experts:
            self._experts[expert] = {IDM: self._idm, PPO: self._ppo}[expert]()
        steering, pedal = (float(value) for value in self._experts[expert]())
        return min(max(steering, -1.0), 1.0), min(max(pedal, -1.0), 1.0)

    def _idm(self) -> Callable[[], Any]:
        return _module("policy.idm_policy").IDMPolicy(self._env.agent, _SEED_OF_IDM).act

    def _ppo(self) -> Callable[[], Any]:
        expert = _module("examples.ppo_expert.numpy_expert").expert
        return lambda: expert(self._env.agent, deterministic=True)

    def _situation(self, info: dict[str, Any], reward: float, *, ended: bool) -> Situation:
        car = self._env.agent
        lane = car.lane
        along, offset = lane.local_coordinates(car.position)
        return Situation(
            *(float(value) for value in (*car.position, car.heading_theta, car.speed, offset, lane.width)),
            lane_heading=float(lane.heading_theta_at(along)),
            completion=1.0 if info["arrive_dest"] else min(max(float(info["route_completion"]), 0.0), 1.0),
            off_road=bool(info["out_of_road"]),
            crash=next((kind for key, kind in _CRASHES.items() if info[key]), None),
            arrived=bool(info["arrive_dest"]),
            ended=ended,
            reward=reward,
            turn=turn_ahead(car.navigation, car.position),
            traffic=self._traffic(car),
        )

    def _traffic(self, car: Any) -> np.ndarray:
        vehicle = _module("component.vehicle.base_vehicle").BaseVehicle
        others = [
            (*other.position, other.heading_theta, other.LENGTH, other.WIDTH, other.HEIGHT, self._number(name))
            for name, other in self._env.engine.get_objects().items()
            if isinstance(other, vehicle) and other is not car
        ]
        return np.asarray(others, np.float32).reshape(-1, 7)

    def _number(self, name: str) -> int:
        """Return the number of a car.

        Its name is drawn anew in every episode, its place in the order is not.
        """
        return self._numbers.setdefault(name, len(self._numbers))


def _module(name: str) -> Any:
    return optional_module(f"metadrive.{name}", "metadrive")


def turn_ahead(navigation: Any, position: Any) -> float | None:
    """Return the turn of the route at a junction.

    It is the change of heading over the branch; None away from junctions.

    Args:
        navigation: The route: `current_road`, `next_road`, their lanes, and the map.
        position: The middle of the car.
    """
    graph, lane = navigation.map.road_network.graph, navigation.current_ref_lanes[0]
    if len(graph[navigation.current_road.start_node]) > 1:
        return _bend(lane)
    ahead = lane.length - lane.local_coordinates(position)[0]
    branches = graph.get(navigation.current_road.end_node, {})
    if navigation.next_road is None or len(branches) < 2 or ahead > ANNOUNCED:
        return None
    return _bend(navigation.next_ref_lanes[0])


def _bend(lane: Any) -> float:
    change = lane.heading_theta_at(lane.length) - lane.heading_theta_at(0)
    return float((change + math.pi) % (2 * math.pi) - math.pi)
