"""Load by wrk, if it is installed: a client in C takes less of the cores that it shares with the service."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.load import Report

_SCRIPT = """
local bodies, next_body = {}, 0
for line in io.lines(%s) do bodies[#bodies + 1] = line end
local headers = {["Content-Type"] = "application/json"}
local requests = {}
init = function(args)
  for i, body in ipairs(bodies) do requests[i] = wrk.format("POST", %s, headers, body) end
end
request = function()
  next_body = next_body %% #requests + 1
  return requests[next_body]
end
done = function(summary, latency, _)
  local points = {}
  for i = 1, 1000 do points[i] = latency:percentile(math.min(i / 10, 99.999)) end
  io.write("RESULT ", summary.requests, " ", summary.duration, " ", summary.errors.status, " ",
    summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout)
  for i = 1, 1000 do io.write(" ", points[i]) end
  io.write("\\n")
end
"""


def installed() -> bool:
    return shutil.which("wrk") is not None


def measure(url: str, bodies: Sequence[bytes], *, seconds: float, connections: int = 64, inputs: int = 1) -> Report:
    """A closed loop from one thread. Latencies are wrk's 1,000 quantiles, spread over the responses."""
    with tempfile.TemporaryDirectory() as folder:
        lines, script = Path(folder) / "bodies", Path(folder) / "load.lua"
        lines.write_bytes(b"\n".join(bodies) + b"\n")
        script.write_text(_SCRIPT % (json.dumps(str(lines)), json.dumps(urlsplit(url).path)))
        command = [
            "wrk",
            "-t1",
            f"-c{connections}",
            f"-d{seconds:g}s",
            "--timeout",
            "30s",
            "-s",
            str(script),
            url,
        ]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result = next(line for line in output.splitlines() if line.startswith("RESULT "))
    requests, microseconds, bad, failed, *points = (float(word) for word in result.split()[1:])
    answered = int(requests - bad)
    statuses = Counter({"200": answered, "not 2xx": int(bad), "failed": int(failed)})
    latencies = [points[i * len(points) // answered] / 1e6 for i in range(answered)]
    return Report(microseconds / 1e6, latencies, +statuses, inputs)
