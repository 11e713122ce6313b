# The server in a container, without a GPU:
#
#   docker build --target cpu -t quire:cpu .
#   docker run --rm -p 8000:8000 quire:cpu --max-num-seqs 64        # flags go to `quire serve`
#   docker run --rm -p 8000:8000 -v /my/model:/model:ro quire:cpu /model

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
# The binary looks for its default model in ../models beside its own directory.
COPY models/quire-22m /opt/quire/models/quire-22m
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
