# One image, one command: fracgpu run ROLE. `make image` builds one without a daemon, and smaller.
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY requirements.lock requirements-image.lock pyproject.toml setup.py README.md LICENSE ./
# Only what builds FracGPU itself, of a lock that also pins what developers need.
RUN sed -n '/^\(setuptools\|ziglang\)==/,/[^\\]$/p' requirements.lock > build.lock
RUN python -m venv /build && /build/bin/pip install --no-cache-dir --require-hashes --requirement build.lock
RUN python -m venv --without-pip /opt/fracgpu
RUN /build/bin/pip --python /opt/fracgpu/bin/python install --no-cache-dir --no-deps --require-hashes \
    --requirement requirements-image.lock
COPY fracgpu fracgpu
COPY kube kube
COPY process process
COPY component component
COPY certs certs
COPY webhook webhook
COPY scheduler scheduler
COPY deviceplugin deviceplugin
COPY rebalancer rebalancer
COPY simulator simulator
COPY cli cli
RUN /build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheel . \
    && /build/bin/pip --python /opt/fracgpu/bin/python install --no-deps --no-index /wheel/*.whl

FROM python:3.11-slim-bookworm
COPY --from=build /opt/fracgpu /opt/fracgpu
ENV PATH=/opt/fracgpu/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
# Never with python -O: assertions check what cannot happen.
ENTRYPOINT ["fracgpu"]
