# Tracewright with its compiler, for a user without rights.
#
#     docker build -t tracewright .
#     docker run -p 8080:8080 -v tracewright:/data tracewright serve HuggingFaceTB/SmolLM2-135M-Instruct --host 0.0.0.0
FROM rust:1.95-bookworm AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-pip python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN cargo xtask setup
RUN PATH="/src/.tracewright/venv/bin:$PATH" \
    cargo build --release --locked --package tracewright-cli --features iree
RUN mkdir /iree && cd .tracewright/venv/lib/python3*/site-packages/iree/compiler/_mlir_libs \
    && cp iree-compile iree-lld libIREECompiler.so /iree

FROM debian:bookworm-slim
COPY --from=build /iree /opt/iree
COPY --from=build /src/target/release/tracewright /src/target/release/trace-dump /usr/local/bin/
RUN useradd --uid 10001 --create-home --home-dir /data tracewright
USER tracewright
# Models that are downloaded, compiled modules and archives.
ENV PATH=/opt/iree:$PATH HF_HOME=/data/huggingface TRACEWRIGHT_CACHE=/data/cache
WORKDIR /data
VOLUME /data
EXPOSE 8080
HEALTHCHECK --start-period=10m --interval=15s CMD ["bash", "-c", \
    "exec 3<>/dev/tcp/127.0.0.1/8080 && printf 'GET /health HTTP/1.0\\r\\n\\r\\n' >&3 && grep -q '^HTTP/1.. 200' <&3"]
ENTRYPOINT ["tracewright"]
CMD ["--help"]
