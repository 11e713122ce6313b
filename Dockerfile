# The server in a container, without a GPU or with one (which needs the NVIDIA Container Toolkit and
# a driver for CUDA 13 on the host; nothing else):
#
#   docker build --target cpu -t quire:cpu --build-arg COMMIT=$(git rev-parse --short=12 HEAD) .
#   docker build --target cuda -t quire:cuda .
#   docker run --rm -p 8000:8000 quire:cpu --max-num-seqs 64        # flags go to `quire serve`
#   docker run --rm -p 8000:8000 --gpus all -v /my/models:/models:ro quire:cuda /models/NAME
#
# The server runs as user 10001 and writes no file, so `--read-only --cap-drop=ALL` may be added.
# scripts/ci/check_image builds both targets without a daemon, and serves from what it built.

FROM nvidia/cuda:13.0.2-devel-ubuntu24.04 AS build-cuda
RUN apt-get update && apt-get install -y --no-install-recommends \
        build-essential ca-certificates meson ninja-build pkg-config \
        libmicrohttpd-dev libgnutls28-dev libuv1-dev libjansson-dev libpcre2-dev libutf8proc-dev libzmq3-dev libcurl4-gnutls-dev \
        $(apt-cache pkgnames libjs- | grep -xE 'libjs-(highlight\.js|marked|pdf)') \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY LICENSE THIRD_PARTY_NOTICES.txt meson.build meson_options.txt ./
COPY subprojects subprojects
COPY models models
COPY config config
COPY engine engine
COPY server server
COPY cuda cuda
ARG COMMIT=unknown
# cuBLASLt is loaded by name when a GPU is used, and is all that is needed of the toolkit.  An
# installed binary looks for it in ../lib, seen from its own directory.
RUN meson setup build --prefix=/opt/quire -Dtests=disabled -Dcuda=enabled -Dgrammar=enabled \
        -Dkv_events=enabled -Dhub=enabled -Dcommit="$COMMIT" \
    && meson install -C build \
    && mkdir /opt/quire/lib && cp -L /usr/local/cuda/lib64/libcublasLt.so.13 /opt/quire/lib/

# The base image says to the container toolkit which driver libraries to bring; of CUDA it holds next
# to nothing.
FROM nvidia/cuda:13.0.2-base-ubuntu24.04 AS cuda
RUN apt-get update && apt-get install -y --no-install-recommends \
        libmicrohttpd12t64 libgnutls30t64 libuv1t64 libjansson4 libpcre2-8-0 libstdc++6 libzmq5 libcurl3t64-gnutls ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --no-create-home --home-dir /models --shell /usr/sbin/nologin quire \
    && mkdir /models
COPY --from=build-cuda /opt/quire /opt/quire
ENV PATH=/opt/quire/bin:$PATH \
    QUIRE_HOST=0.0.0.0 \
    QUIRE_PORT=8000
# By number: Kubernetes' runAsNonRoot cannot look a name up.
USER 10001
VOLUME /models
EXPOSE 8000
# Port and TLS are those of the environment.  A server that loads its model is not healthy yet.
HEALTHCHECK --interval=10s --timeout=5s --start-period=600s CMD ["quire", "health"]
ENTRYPOINT ["quire", "serve"]

FROM debian:12 AS build
RUN apt-get update && apt-get install -y --no-install-recommends \
        build-essential ca-certificates meson ninja-build pkg-config \
        libmicrohttpd-dev libgnutls28-dev libuv1-dev libjansson-dev libpcre2-dev libutf8proc-dev libzmq3-dev libcurl4-gnutls-dev \
        $(apt-cache pkgnames libjs- | grep -xE 'libjs-(highlight\.js|marked|pdf)') \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY LICENSE THIRD_PARTY_NOTICES.txt meson.build meson_options.txt ./
COPY subprojects subprojects
COPY models models
COPY config config
COPY engine engine
COPY server server
COPY cuda cuda
ARG COMMIT=unknown
RUN meson setup build --prefix=/opt/quire -Dtests=disabled -Dcuda=disabled -Dgrammar=enabled \
        -Dkv_events=enabled -Dhub=enabled -Dcommit="$COMMIT" \
    && meson install -C build

# Only the shared libraries that the binary names, and what is installed.
FROM debian:12-slim AS cpu
RUN apt-get update && apt-get install -y --no-install-recommends \
        libmicrohttpd12 libgnutls30 libuv1 libjansson4 libpcre2-8-0 libstdc++6 libzmq5 libcurl3-gnutls ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --no-create-home --home-dir /models --shell /usr/sbin/nologin quire \
    && mkdir /models
COPY --from=build /opt/quire /opt/quire
ENV PATH=/opt/quire/bin:$PATH \
    QUIRE_HOST=0.0.0.0 \
    QUIRE_PORT=8000
# By number: Kubernetes' runAsNonRoot cannot look a name up.
USER 10001
VOLUME /models
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["quire", "health"]
ENTRYPOINT ["quire", "serve"]
