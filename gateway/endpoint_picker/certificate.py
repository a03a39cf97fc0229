"""Certificate of the picker: its files', or one that it signs itself.

Data planes speak TLS to a picker and do not look at whose certificate it is, as the picker of the Gateway API inference extension
makes one at each start (kubernetes-sigs/gateway-api-inference-extension 84436a9, internal/tls/tls.go). So does this one, unless files
are named. It keeps eavesdroppers from reading, and no machine from answering in the picker's place.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

YEARS: Final = 10


def from_files(cert_file: str, key_file: str) -> tuple[bytes, bytes]:
    """Chain and key; one file may hold both. Raises OSError."""
    return Path(cert_file).read_bytes(), Path(key_file or cert_file).read_bytes()


def self_signed() -> tuple[bytes, bytes]:
    """Chain and key, as PEM; another one each time."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pdgate endpoint picker")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Clocks differ.
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=365 * YEARS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return (
        made.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
