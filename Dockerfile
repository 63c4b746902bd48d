# One image, one command: fracgpu run ROLE.
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /opt/fracgpu
COPY requirements.lock pyproject.toml README.md LICENSE ./
# The lock also pins what only developers need; used as constraints, it installs none of that.
RUN /opt/fracgpu/bin/pip install --no-cache-dir --constraint requirements.lock setuptools
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
RUN /opt/fracgpu/bin/pip install --no-cache-dir --no-build-isolation \
    --constraint requirements.lock ".[all]"

FROM python:3.11-slim-bookworm
COPY --from=build /opt/fracgpu /opt/fracgpu
ENV PATH=/opt/fracgpu/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
# Never with python -O: assertions check what cannot happen.
ENTRYPOINT ["fracgpu"]
