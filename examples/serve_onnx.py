"""An HTTP server for an exported model that abstains instead of guessing. Needs onnxruntime, and does not import torch.

    selfadapt train photos --out runs/photos
    selfadapt calibrate runs/photos --risk 0.05
    selfadapt export runs/photos --format onnx --out model.onnx
    python examples/serve_onnx.py model.onnx --port 8000
    curl --data-binary @photo.jpg http://127.0.0.1:8000/

The answer is the JSON of `selfadapt predict`, such as {"class": null, "abstained": true, "confidence": 0.41, "guess":
"cat"}, with the status 200; or {"error": …} with 415 for a body that is not an image, and 413 for one that is too big.
"""

import argparse
import json
import tempfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from selfadapt.runs.inspect.onnx_predictor import OnnxPredictor

MOST_BYTES = 20 << 20


def server(model: Path, port: int) -> ThreadingHTTPServer:
    """Listen on loopback; port 0 takes any that is free."""
    predictor = OnnxPredictor.open(model)
    if predictor.preprocessing is None:
        raise SystemExit(f"{model} takes vectors; this example serves images")

    class Handler(BaseHTTPRequestHandler):
        timeout = 30  # seconds without a byte

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal():
                return self.reply(411, {"error": "send an image with its Content-Length"})
            if int(length) > MOST_BYTES:
                return self.reply(413, {"error": f"send at most {MOST_BYTES} bytes"})
            with tempfile.NamedTemporaryFile() as file:
                file.write(self.rfile.read(int(length)))
                file.flush()
                (answer,) = predictor.answer([Path(file.name)])
            del answer["path"]
            return self.reply(415 if "error" in answer else 200, answer)

        def reply(self, status: int, content: dict[str, object]) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args()
    with server(given.model, given.port) as running:
        print(f"http://127.0.0.1:{running.server_address[1]}/", flush=True)
        running.serve_forever()
