# SPDX-License-Identifier: GPL-3.0-or-later
"""A docker or a podman of the test's own, with an image that holds nothing: its containers run this machine's Python."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
import time
from pathlib import Path

from tests.contract.scripted import until
from tests.contract.watchdog.bed import HERE, Bed

IMAGE = "gb10/nothing"


def image() -> bytes:
    """Folders to mount on, and the links by which a merged /usr is found."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in ("usr", "tmp", "etc", "dev", "proc", "sys"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
        for name in ("bin", "sbin", "lib", "lib64"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(link)
    return out.getvalue()


class Cannot(Exception):
    """This machine cannot run it; says why."""


def unmount_below(folder: Path) -> None:
    """What an engine left mounted, such as its network's name; else its folder cannot be deleted."""
    rows = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for point in sorted((row for row in rows if row.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "--lazy", point], capture_output=True)


class Docker:
    """A docker daemon with a socket and a folder of its own. It makes no network."""

    kind = "docker"

    def __init__(self, folder: Path) -> None:
        if shutil.which("dockerd") is None:
            raise Cannot("no dockerd here; the package docker.io has it")
        self.folder, self.env = folder, dict(os.environ)
        self.socket = f"unix://{folder / 'sock'}"
        self.client = ["docker", "--host", self.socket]
        (folder / "config.json").write_text("{}")
        self.log = folder / "log"
        options = {
            "host": self.socket,
            "data-root": folder / "data",
            "exec-root": folder / "exec",
            "pidfile": folder / "pid",
            "config-file": folder / "config.json",
            "bridge": "none",
            "iptables": "false",
            "ip6tables": "false",
        }
        with self.log.open("w") as log:
            self.daemon = subprocess.Popen(
                ["dockerd", *(f"--{name}={value}" for name, value in options.items())],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        end = time.monotonic() + 60
        while self("version", check=False).returncode != 0:
            if self.daemon.poll() is not None or time.monotonic() > end:
                self.daemon.kill()
                raise Cannot(f"dockerd does not run here: {self.log.read_text()[-300:]}")
            time.sleep(0.1)
        self.begin()

    def begin(self) -> None:
        """The image is put in, and one container run: where that cannot be, nothing about ours would be shown."""
        for words, given in (
            (("import", "-", IMAGE), image()),
            (("run", "--rm", "--network=host", "--pid=host", "--volume=/usr:/usr:ro", IMAGE, "/usr/bin/true"), None),
        ):
            tried = self(*words, check=False, given=given)
            if tried.returncode != 0:
                self.close()
                raise Cannot(f"{self.kind} runs no container here: {tried.stderr.decode()[-300:]}")

    def __call__(self, *words: str, check: bool = True, given: bytes | None = None):
        done = subprocess.run([*self.client, *words], env=self.env, input=given, capture_output=True, timeout=120)
        assert not check or done.returncode == 0, done.stderr.decode()
        return done

    def target(self, name: str) -> dict[str, str]:
        return {"docker": name, "host": self.socket}

    def close(self) -> None:
        for one in self("ps", "--all", "--quiet", check=False).stdout.decode().split():
            self("rm", "--force", one, check=False)
        self.daemon.terminate()
        try:
            self.daemon.wait(60)
        except subprocess.TimeoutExpired:
            self.daemon.kill()
        unmount_below(self.folder)


class Podman(Docker):
    """A podman whose containers, images and events are in a folder of its own."""

    kind = "podman"

    def __init__(self, folder: Path) -> None:
        if shutil.which("podman") is None:
            raise Cannot("no podman here; the package podman has it")
        self.folder, self.client = folder, ["podman"]
        runtime = shutil.which("runc") or shutil.which("crun") or "crun"
        (folder / "containers.conf").write_text(
            f'[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\nruntime = "{Path(runtime).name}"\n'
            f'tmp_dir = "{folder / "tmp"}"\n'
            '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n'
        )
        (folder / "storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{folder / "root"}"\nrunroot = "{folder / "run"}"\n'
        )
        self.env = {
            **os.environ,
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        }
        self.begin()

    def target(self, name: str) -> dict[str, str]:
        return {"podman": name}

    def close(self) -> None:
        self("rm", "--force", "--all", "--time", "0", check=False)
        unmount_below(self.folder)


class ContainerBed(Bed):
    """The scripted engine in a container instead of behind a start script."""

    def __init__(self, folder: Path, engine: Docker) -> None:
        self.engine = engine
        super().__init__(folder)
        self.describe()

    @property
    def env(self):
        more = {name: value for name, value in self.engine.env.items() if name.startswith("CONTAINERS_")}
        # compose takes the socket from the environment
        return {**super().env, **more, "DOCKER_HOST": getattr(self.engine, "socket", "")}

    @property
    def argv(self) -> list[str]:
        return ["/usr/bin/python3", "-u", str(HERE / "engine.py"), str(self.folder), str(self.port)]

    def describe(self, settings=None, **server):
        super().describe(settings, **{"restart": self.engine.target("qwen"), **server})

    def run(self, *options: str, name: str = "qwen", argv: list[str] | None = None) -> None:
        """A container of that name. Its pids are the machine's: the engine's files name them."""
        mounts = [f"--volume={path}:{path}{mode}" for path, mode in (("/usr", ":ro"), (HERE, ":ro"), (self.folder, ""))]
        shared = ("--network=host", "--pid=host", *mounts)
        self.engine("run", "--detach", "--name", name, *shared, *options, IMAGE, *(argv or self.argv))

    def last_observation(self):
        lines = (self.folder / "state/traces/qwen.jsonl").read_text().splitlines()
        return json.loads(lines[-1])

    def start(self) -> None:
        self.run()
        until(self.answers)

    def inspected(self, name: str = "qwen"):
        return json.loads(self.engine("inspect", name).stdout)[0]

    def end(self) -> None:
        for one in self.engine("ps", "--all", "--quiet").stdout.decode().split():
            self.engine("rm", "--force", one, check=False)
