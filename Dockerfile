# The image for a GPU node. The CUDA libraries come from wheels, the driver from the host's NVIDIA container runtime;
# with no GPU the same image serves products from the CPU through PoCL. BASE is anything with a C library and python3,
# and by a digest (--build-arg BASE=python:3.12-slim@sha256:...) the same tomorrow: docs/how-to/deploy.md says how.
ARG BASE=python:3.12-slim

# The builder makes the virtual environment. Every package is checked against its hash in uv.lock, uv itself included.
FROM ${BASE} AS builder
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 UV_NO_CACHE=1 UV_PYTHON_DOWNLOADS=never UV_LINK_MODE=copy
WORKDIR /src
COPY pyproject.toml uv.lock README.md LICENSE ./
RUN python3 -c "import tomllib; \
p = {p['name']: p for p in tomllib.load(open('uv.lock', 'rb'))['package']}['uv']; \
print('uv==' + p['version'], *('--hash=' + w['hash'] for w in p['wheels']))" > /tmp/uv.txt \
 && python3 -m venv /tmp/tools \
 && /tmp/tools/bin/pip install --quiet --require-hashes --requirement /tmp/uv.txt \
 && python3 -m venv --without-pip /opt/tilewise \
 && /tmp/tools/bin/uv export --quiet --frozen --no-emit-project --extra cublas --extra postgres --extra otel -o /tmp/run.txt \
 && /tmp/tools/bin/uv export --quiet --frozen --no-emit-project --only-group build -o /tmp/build.txt \
 && /tmp/tools/bin/uv export --quiet --frozen --format cyclonedx1.5 --preview-features sbom-export \
      --extra cublas --extra postgres --extra otel -o /opt/tilewise/sbom.cdx.json \
 && /tmp/tools/bin/uv pip install --quiet --require-hashes --python /opt/tilewise/bin/python --compile-bytecode -r /tmp/run.txt \
 && /tmp/tools/bin/uv pip install --quiet --require-hashes --python /tmp/tools/bin/python -r /tmp/build.txt
COPY app ./app
COPY kernels ./kernels
COPY migrations ./migrations
COPY tilewise ./tilewise
RUN /tmp/tools/bin/python -m hatchling build -t wheel -d /tmp/wheel \
 && /tmp/tools/bin/uv pip install --quiet --offline --no-deps --python /opt/tilewise/bin/python --compile-bytecode /tmp/wheel/*.whl

# What runs: the base, the virtual environment and one user. No pip, no compiler, no source tree is copied in.
FROM ${BASE}
LABEL org.opencontainers.image.title="Tilewise" \
      org.opencontainers.image.description="An autotuning service for matrix multiplication" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0"
RUN groupadd --gid 1000 tilewise \
 && useradd --uid 1000 --gid 1000 --no-create-home --home-dir /data --shell /usr/sbin/nologin tilewise \
 && install --directory --owner 1000 --group 1000 /data
COPY --from=builder /opt/tilewise /opt/tilewise
# Everything that is written goes to /data or /tmp, so that the root file system can be read-only. Whoever calls shows
# a key: TILEWISE_ADMIN_KEY_FILE names a file with one, and `tilewise keys create` makes others.
ENV PATH=/opt/tilewise/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/data \
    TILEWISE_DATA_DIR=/data \
    TILEWISE_AUTH=keys \
    XDG_CACHE_HOME=/data/cache \
    CUPY_CACHE_DIR=/data/cache/cupy \
    POCL_CACHE_DIR=/data/cache/pocl \
    TMPDIR=/tmp \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000:1000
WORKDIR /data
VOLUME /data
EXPOSE 8000
# Ready, so that a device that hangs is seen within a minute. While the service starts it verifies kernels and is not
# ready: in the first five minutes a failed check does not count, and the first that passes ends them.
HEALTHCHECK --interval=15s --timeout=5s --start-period=300s --retries=4 \
  CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health/ready', timeout=4)"]
ENTRYPOINT ["tilewise"]
CMD ["serve", "--host", "0.0.0.0"]
