# vit.c on a CPU.
#
#   docker build -t vit.c .
#   docker run --rm -v "$PWD/runs:/vit/runs" vit.c --config /usr/local/share/vit.c/configs/cpu/shapes.ini
#
# The programs run on every x86-64 CPU with AVX2; --build-arg ARCH sets another oldest CPU.
#
# With --build-arg VIDEO=1 they read videos, and the image has FFmpeg's libraries.

FROM debian:bookworm AS build
ARG ARCH=portable
ARG VIDEO=0
COPY scripts/deps.sh /src/scripts/
WORKDIR /src
RUN apt-get update && apt-get install -y --no-install-recommends make ca-certificates && sh scripts/deps.sh mpi \
    && if [ "$VIDEO" = 1 ]; then apt-get install -y --no-install-recommends \
        pkg-config libavformat-dev libavcodec-dev libswscale-dev; fi
COPY . .
RUN make -j"$(nproc)" ARCH="$ARCH" && make ARCH="$ARCH" DESTDIR=/installed install

FROM debian:bookworm-slim
ARG VIDEO=0
RUN apt-get update && apt-get install -y --no-install-recommends \
        libdnnl2 libgomp1 libinih1 libjansson4 libjpeg62-turbo libopenmpi3 libxxhash0 openmpi-bin \
        ca-certificates curl python3 python3-matplotlib python3-numpy \
        $(if [ "$VIDEO" = 1 ]; then echo libavformat59 libavcodec59 libswscale6; fi) \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /installed /
WORKDIR /vit
ENTRYPOINT ["train_vit"]
