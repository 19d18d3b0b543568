# The service as a container image; docker-compose.yml has the commands.
#
#   docker build -t bert-service:cpu .                  CPU (the last target, so the default one)
#   docker build -t bert-service:cuda --target cuda .   NVIDIA GPU
#   docker build -t bert-train --target train .         training on an NVIDIA GPU
#
# On x86-64 the package index's own torch carries CUDA, several gigabytes that a CPU never reads. For the small
# image name the index of PyTorch's CPU builds, the one in its installation guide:
#   docker build --build-arg TORCH_INDEX=... .

FROM python:3.11-slim AS base
ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /srv


# What changes least comes first: torch, the other dependencies, the code. Each is a layer of the final image.
FROM base AS builder
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore
RUN python3 -m venv --without-pip /opt/venv
COPY constraints.txt .

FROM builder AS requirements
COPY pyproject.toml .
# Extras of the service, with spaces between them: otel cluster
ARG EXTRAS=
RUN python3 -c 'import os, tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
extra = project["optional-dependencies"]; wanted = [extra[name] for name in os.environ["EXTRAS"].split()]; \
print(*project["dependencies"], *sum(wanted, []), sep="\n", file=open("serve.txt", "w")); \
print(*(name for name in extra["train"] if name != "bert-service-client"), sep="\n", file=open("train.txt", "w"))'

FROM builder AS cpu-dependencies
ARG TORCH_INDEX=
RUN python3 -m pip --python /opt/venv/bin/python install --no-deps ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} \
    -c constraints.txt torch \
    # torch's own tests and C++ headers: 190 MB
    && cd /opt/venv/lib/python3*/site-packages/torch \
    && rm -rf include test \
    && find bin -type f ! -name torch_shm_manager -delete
COPY --from=requirements /srv/serve.txt .
RUN python3 -m pip --python /opt/venv/bin/python install -c constraints.txt -r serve.txt

FROM builder AS cuda-dependencies
ARG TORCH_CUDA_INDEX=
RUN python3 -m pip --python /opt/venv/bin/python install --no-deps \
    ${TORCH_CUDA_INDEX:+--index-url "$TORCH_CUDA_INDEX"} -c constraints.txt torch
COPY --from=requirements /srv/serve.txt .
RUN python3 -m pip --python /opt/venv/bin/python install -c constraints.txt -r serve.txt

FROM cuda-dependencies AS train-dependencies
COPY --from=requirements /srv/train.txt .
RUN python3 -m pip --python /opt/venv/bin/python install -c constraints.txt -r train.txt

FROM builder AS package
COPY bert_service.py pyproject.toml README.md LICENSE ./
COPY app app
COPY client client
COPY model model
COPY training training
RUN python3 -m pip --python /opt/venv/bin/python install --no-deps --target /opt/bert ./client .


# What is installed belongs to root, and the process is not root: it writes to volumes only.
FROM base AS runtime
LABEL org.opencontainers.image.version=0.4.0 \
    org.opencontainers.image.licenses=MIT
ENV PATH=/opt/bert/bin:/opt/venv/bin:$PATH \
    PYTHONPATH=/opt/bert \
    HOME=/tmp \
    USER=bert
# Any user of group 0 may do what 10001 may, because OpenShift runs containers under ids of its own.
RUN install -d -o 10001 -g 0 -m 775 /checkpoints /runs
USER 10001:0
STOPSIGNAL SIGTERM

FROM runtime AS service
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s --retries=3 CMD ["python3", "-c", \
    "import os, urllib.request as r; get = os.environ.get; \
    host, port = get('BERT_HOST'), get('BERT_PORT') or get('PORT'); \
    host = '127.0.0.1' if host in (None, '', '0.0.0.0', '::') else f'[{host}]' if ':' in host else host; \
    r.build_opener(r.ProxyHandler({})).open(r.Request(f'http://{host}:{port or 8000}/health/ready', \
    headers={'Host': '127.0.0.1'}))"]
ENTRYPOINT ["bert-serve"]

# torch.compile builds kernels while it trains: the one image with a C compiler.
FROM runtime AS train
USER root
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
USER 10001:0
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=train-dependencies /opt/venv /opt/venv
COPY --from=package /opt/bert /opt/bert
ENTRYPOINT ["bert-train"]

FROM service AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=cuda-dependencies /opt/venv /opt/venv
COPY --from=package /opt/bert /opt/bert

FROM service AS cpu
COPY --from=cpu-dependencies /opt/venv /opt/venv
COPY --from=package /opt/bert /opt/bert
