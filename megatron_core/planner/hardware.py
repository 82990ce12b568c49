# SPDX-License-Identifier: Apache-2.0
"""What a cluster can do, by its data sheets: devices, links inside a node, network, hosts.

Known ones are in `configs/hardware/`: devices.yaml and clusters.yaml. A file of one's own has the fields of a cluster,
its device by a known name or spelled out; `tools/plan.py calibrate` writes one for the machine at hand, with measured
matrix products in place of a peak. What share of a peak is reached is said by `constants.Constants`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from megatron_core.errors import ConfigError

DIRECTORY = Path(__file__).resolve().parents[2] / "configs" / "hardware"
_MISSING = dataclasses.MISSING
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class MeasuredMatmul:
    """A matrix product [m, k] x [k, n] that was timed on one device."""

    m: int
    n: int
    k: int
    tflops: float


@dataclass(frozen=True, kw_only=True)
class MeasuredOperator:
    """An operator that was timed on one device, on so many elements, bytes or times."""

    name: str
    amount: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Device:
    """One device. GB are 10^9 bytes, links are per direction."""

    name: str
    tflops: Mapping[str, float]
    """Dense peak of matrix products by precision; one that is missing has no units."""
    vector_tflops: float
    """Peak without matrix units: what 16-bit products run at whose dims are no multiples of 8."""
    multiprocessors: int = 0
    """Units that each work on one tile of a product; 0: products are priced by `measured_matmuls`."""
    memory_gb: float
    """What a process can have of its memory."""
    memory_gb_per_s: float
    link_gb_per_s: float
    """To the other devices of its node (NVLink)."""
    host_link_gb_per_s: float = 0.0
    """To its host's memory (PCIe)."""
    measured_matmuls: tuple[MeasuredMatmul, ...] = ()
    measured_operators: tuple[MeasuredOperator, ...] = ()
    """Of all names in `eager_work`, and collectives between two ranks by bytes, where there are no multiprocessors."""

    def peak(self, precision: str) -> float:
        """FLOP/s of matrix products. Raises ConfigError for a precision that the device has no units for."""
        if precision not in self.tflops:
            raise ConfigError(f"{self.name} has no {precision} matrix products, only {' and '.join(self.tflops)}")
        return self.tflops[precision] * 1e12


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Nodes of one kind of device, and the network between them."""

    name: str
    device: Device
    devices_per_node: int
    network_gb_per_s: float
    """A device's share of its node's network cards."""
    ring_gb_per_s: float = float("inf")
    """Most that one group gets across nodes, where that was measured to be less than all cards together."""
    rings_gb_per_s: float = float("inf")
    """Most that all groups of a node get together, where that was measured to be less."""
    host_memory_gb: float = 0.0
    """Host memory of a node."""
    host_adam_gparams_per_s: float = 0.0
    """10^9 parameters a second that a node's processors update (AdamW in fp32, 28 bytes each)."""

    def with_operators(self, operators: Sequence[MeasuredOperator]) -> "Hardware":
        """The same nodes whose device has these measurements too."""
        more = (*self.device.measured_operators, *operators)
        return dataclasses.replace(self, device=dataclasses.replace(self.device, measured_operators=more))

    def with_device(self, name: str) -> "Hardware":
        """The same nodes with another known device. Raises ConfigError where there is none of that name."""
        return dataclasses.replace(self, device=known_device(name))


def hardware(name: str) -> Hardware:
    """A known cluster by name, or one's own by the path of its file. Raises ConfigError."""
    if name.endswith((".yaml", ".yml")):
        return _cluster(Path(name).stem, _read(Path(name)), name)
    clusters = _read(DIRECTORY / "clusters.yaml")
    if name not in clusters:
        raise ConfigError(
            f"no hardware {name!r}: choose one of {', '.join(clusters)}, or give the path of a .yaml file"
        )
    return _cluster(name, clusters[name], name)


def known_device(name: str) -> Device:
    """A device of devices.yaml. Raises ConfigError where there is none of that name."""
    devices = _read(DIRECTORY / "devices.yaml")
    if name not in devices:
        raise ConfigError(f"no device {name!r}: choose one of {', '.join(devices)}, or spell its fields out")
    return _device(name, devices[name], name)


def _cluster(name: str, fields: Any, where: str) -> Hardware:
    given = _mapping(fields, where)
    device = given.pop("device", None)
    if device is None:
        raise ConfigError(f"{where}: device is missing")
    known = known_device(device) if isinstance(device, str) else _device(where, device, where)
    return _build(Hardware, {"name": name, "device": known, **given}, where)


def _device(name: str, fields: Any, where: str) -> Device:
    given = {"name": name, **_mapping(fields, where)}
    given["tflops"] = {key: _number(where, key, value) for key, value in _mapping(given.get("tflops"), where).items()}
    for key, kind in (("measured_matmuls", MeasuredMatmul), ("measured_operators", MeasuredOperator)):
        given[key] = tuple(_build(kind, _mapping(one, where), where) for one in given.get(key, []))
    return _build(Device, given, where)


def _build(kind: type[T], given: Mapping[str, Any], where: str) -> T:
    """A dataclass of these fields, numbers checked. Raises ConfigError."""
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if unknown := [name for name in given if name not in fields]:
        raise ConfigError(f"{where}: unknown {', '.join(unknown)}; known are {', '.join(fields)}")
    if missing := [name for name, field in fields.items() if field.default is _MISSING and name not in given]:
        raise ConfigError(f"{where}: {', '.join(missing)} missing")
    values = dict(given)
    for name, field in fields.items():
        if name in given and field.type in (int, float):
            number = _number(where, name, given[name])
            values[name] = int(number) if field.type is int else number
    return kind(**values)


def _number(where: str, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ConfigError(f"{where}: {name} must be a number of at least 0, not {value!r}")
    return float(value)


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: fields with values are expected, not {value!r}")
    return {str(key): entry for key, entry in value.items()}


def _read(path: Path) -> dict[str, Any]:
    try:
        return _mapping(yaml.safe_load(path.read_text(encoding="utf-8")), str(path))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} is no hardware file: {error}") from error
