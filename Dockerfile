# docker build --tag nac-drive . && docker run --rm --volume "$PWD/runs:/app/runs" nac-drive demo
FROM python:3.12-slim
RUN pip install --no-cache-dir torch --index-url https://download.pytorch.org/whl/cpu
COPY . /source
RUN pip install --no-cache-dir /source && rm -r /source
RUN useradd --create-home --uid 1000 driver && install --directory --owner driver /app
USER driver
WORKDIR /app
ENTRYPOINT ["nac-drive"]
CMD ["--help"]
