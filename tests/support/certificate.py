"""Creates a self-signed certificate for localhost with openssl at test time, so that no key is stored anywhere."""

import shutil
import ssl
import subprocess


class Certificate:
    def __init__(self, directory):
        self.certificate = str(directory / "certificate.pem")
        self.key = str(directory / "key.pem")
        subprocess.run(
            [
                shutil.which("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
                "-nodes", "-days", "2", "-subj", "/CN=localhost",
                "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
                "-keyout", self.key, "-out", self.certificate,
            ],
            check=True,
            capture_output=True,
        )  # fmt: skip

    def server(self):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context

    def client(self):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.certificate)
        return context
