"""nginx of the system as a reverse proxy: about the least that HTTP in front of HTTP costs."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.gateway.targets.base import NotInstalled, Place, Target

CONFIGURATION = """
worker_processes 1;
worker_rlimit_nofile 20000;
daemon off;
pid nginx.pid;
events {{ worker_connections 16384; }}
http {{
    access_log off;
    client_body_buffer_size 8m;
    client_max_body_size 64m;
    keepalive_requests 1000000;
    upstream engine {{
        server {engine};
        keepalive 1024;
        keepalive_requests 1000000;
    }}
    server {{
        listen 127.0.0.1:{port} backlog=2048;
        location / {{
            proxy_pass http://engine;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_read_timeout 600s;
        }}
    }}
}}
"""


def _program() -> str | None:
    # Debian has it where the path of ordinary users does not look.
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


def _install(folder: Path) -> None:
    if _program() is None:
        raise NotInstalled("no nginx is installed: apt-get install nginx-light")
    folder.mkdir(parents=True, exist_ok=True)


def _command(place: Place) -> Sequence[str]:
    text = CONFIGURATION.format(engine=urlsplit(place.decode).netloc, port=place.port)
    (place.folder / "nginx.conf").write_text(text, encoding="utf-8")
    return [_program() or "nginx", "-p", f"{place.folder}/", "-e", "stderr", "-c", "nginx.conf"]


TARGET = Target("nginx", "nginx of the system", 1, _install, _command)
