# The server in a container, without a GPU or with one (which needs the NVIDIA Container Toolkit and
# a driver for CUDA 13 on the host; nothing else):
#
#   docker build --target cpu -t quire:cpu .
#   docker build --target cuda -t quire:cuda .
#   docker run --rm -p 8000:8000 quire:cpu --max-num-seqs 64        # flags go to `quire serve`
#   docker run --rm -p 8000:8000 --gpus all -v /my/model:/model:ro quire:cuda /model

FROM nvidia/cuda:13.0.2-devel-ubuntu24.04 AS build-cuda
RUN apt-get update && apt-get install -y --no-install-recommends \
        build-essential meson ninja-build pkg-config \
        libmicrohttpd-dev libuv1-dev libjansson-dev libpcre2-dev libutf8proc-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY meson.build meson_options.txt ./
COPY engine engine
COPY server server
COPY cuda cuda
# cuBLASLt is loaded by name when a GPU is used, and is all that is needed of the toolkit: the runtime
# image gets it in ../lib beside the binary's directory.
RUN LDFLAGS='-Wl,-rpath,$ORIGIN/../lib' meson setup build -Dtests=disabled -Dcuda=enabled \
    && ninja -C build quire \
    && mkdir /src/lib && cp -L /usr/local/cuda/lib64/libcublasLt.so.13 /src/lib/

# The base image says to the container toolkit which driver libraries to bring; of CUDA it holds next
# to nothing.
FROM nvidia/cuda:13.0.2-base-ubuntu24.04 AS cuda
RUN apt-get update && apt-get install -y --no-install-recommends \
        libmicrohttpd12t64 libuv1t64 libjansson4 libpcre2-8-0 libutf8proc3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --no-create-home --shell /usr/sbin/nologin quire
COPY models/quire-22m /opt/quire/models/quire-22m
COPY config /opt/quire/config
COPY LICENSE /opt/quire/LICENSE
COPY --from=build-cuda /src/lib /opt/quire/lib
COPY --from=build-cuda /src/build/quire /opt/quire/bin/quire
ENV PATH=/opt/quire/bin:$PATH \
    QUIRE_HOST=0.0.0.0 \
    QUIRE_PORT=8000
USER quire
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=120s CMD ["bash", "-c", \
    "exec 3<>/dev/tcp/127.0.0.1/$QUIRE_PORT && printf 'GET /health HTTP/1.0\\r\\n\\r\\n' >&3 \
    && head -n1 <&3 | grep -q ' 200 '"]
ENTRYPOINT ["quire", "serve"]

FROM debian:12 AS build
RUN apt-get update && apt-get install -y --no-install-recommends \
        build-essential meson ninja-build pkg-config \
        libmicrohttpd-dev libuv1-dev libjansson-dev libpcre2-dev libutf8proc-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY meson.build meson_options.txt ./
COPY engine engine
COPY server server
COPY cuda cuda
RUN meson setup build -Dtests=disabled -Dcuda=disabled && ninja -C build quire

# Only the shared libraries that the binary names, the binary, its licence, and the default model.
FROM debian:12-slim AS cpu
RUN apt-get update && apt-get install -y --no-install-recommends \
        libmicrohttpd12 libuv1 libjansson4 libpcre2-8-0 libutf8proc2 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --no-create-home --shell /usr/sbin/nologin quire
# The binary looks for its default model in ../models beside its own directory, and for what is
# known of models in ../config.
COPY models/quire-22m /opt/quire/models/quire-22m
COPY config /opt/quire/config
COPY LICENSE /opt/quire/LICENSE
COPY --from=build /src/build/quire /opt/quire/bin/quire
ENV PATH=/opt/quire/bin:$PATH \
    QUIRE_HOST=0.0.0.0 \
    QUIRE_PORT=8000
USER quire
EXPOSE 8000
# The slim image has no curl; bash can speak enough HTTP.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s CMD ["bash", "-c", \
    "exec 3<>/dev/tcp/127.0.0.1/$QUIRE_PORT && printf 'GET /health HTTP/1.0\\r\\n\\r\\n' >&3 \
    && head -n1 <&3 | grep -q ' 200 '"]
ENTRYPOINT ["quire", "serve"]
