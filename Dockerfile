# vit.c on a CPU.
#
#   docker build -t vit.c .
#   docker run --rm -v "$PWD/runs:/vit/runs" vit.c --config /usr/local/share/vit.c/configs/cpu/shapes.ini
#
# The programs run on every x86-64 CPU from AVX2 on; with another ARCH on those from that on.
FROM debian:bookworm AS build
ARG ARCH=portable
COPY scripts/deps.sh /src/scripts/
WORKDIR /src
RUN apt-get update && apt-get install -y --no-install-recommends make ca-certificates && sh scripts/deps.sh mpi
COPY . .
RUN make -j"$(nproc)" ARCH="$ARCH" && make ARCH="$ARCH" DESTDIR=/installed install

FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends \
        libdnnl2 libgomp1 libinih1 libjansson4 libjpeg62-turbo libopenmpi3 libxxhash0 openmpi-bin \
        ca-certificates curl python3 python3-matplotlib python3-numpy \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /installed /
WORKDIR /vit
ENTRYPOINT ["train_vit"]
