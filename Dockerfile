# The service on a CPU, as docs/how-to/deploy.md describes. The model is mounted, never baked in.
FROM python:3.12-slim

# Address of an index with CPU builds of PyTorch; the default index may bring the CUDA build.
ARG TORCH_INDEX=""

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
WORKDIR /app

COPY constraints.txt ./
RUN pip install --no-cache-dir -c constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} \
        torch==2.13.0

COPY pyproject.toml README.md LICENSE ./
COPY configs ./configs
COPY data_prep ./data_prep
COPY recsys_moe ./recsys_moe
RUN pip install --no-cache-dir -c constraints.txt ".[serve]" \
    && useradd --system --uid 10001 --no-create-home service

USER 10001
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/healthz', timeout=2)"]
ENTRYPOINT ["recsys-moe", "serve"]
CMD ["/model", "--host", "0.0.0.0", "--port", "8000"]
