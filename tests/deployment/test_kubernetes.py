"""The manifests, as kustomize puts them together, against Kubernetes' own schemas and its Pod Security Standards."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any, TypeAlias

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml  # type: ignore[import-untyped]  # the types would be one more package for one test

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
VARIANTS = ["base", "device-plugin", "dra"]
SINCE = "1.34"  # the first with resource.k8s.io/v1
NEWEST = kubernetes_validate.latest_version()

Document: TypeAlias = dict[str, Any]


@pytest.mark.rotating
@pytest.mark.parametrize("version", [SINCE, NEWEST])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_manifest_is_kubernetess_own(variant: str, version: str) -> None:
    documents = rendered(variant)
    assert len(documents) >= 7
    for document in documents:
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec/replicas", "one"),
        ("spec/template/spec/container", []),
        ("spec/template/spec/containers/0/livenessProbe/httpget", {}),
        ("spec/strategy/typ", "Recreate"),
    ],
)
def test_the_schemas_find_a_slip(path: str, value: Any) -> None:
    deployment = copy.deepcopy(one("base", "Deployment"))
    patched(deployment, f"/{path}", value)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, NEWEST, strict=True)


def test_every_file_is_part_of_something() -> None:
    for variant in VARIANTS:
        folder = FOLDER / variant
        listed = {name for name in kustomization(folder)["resources"] if not name.startswith("..")}
        assert {path.name for path in folder.iterdir()} == listed | {"kustomization.yaml"}


def test_one_service_owns_its_volume_and_nobody_else_gets_a_token() -> None:
    deployment, pod = one("base", "Deployment"), pod_of("base")
    assert (deployment["spec"]["replicas"], deployment["spec"]["strategy"]) == (1, {"type": "Recreate"})
    claim = one("base", "PersistentVolumeClaim")
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    assert {"name": "data", "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}} in pod["volumes"]
    assert one("base", "ServiceAccount")["automountServiceAccountToken"] is False
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False, "TILEWISE_PORT would be tcp://..., and the service would not start"
    mounts = {mount["mountPath"] for mount in container_of("base")["volumeMounts"]}
    assert mounts == {"/data", "/tmp", "/run/secrets/tilewise"}  # noqa: S108 - the image's own
    assert environment("base")["TILEWISE_DATA_DIR"].startswith("/data/")


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_pod_meets_the_restricted_standard_that_its_namespace_enforces(variant: str) -> None:
    labels = one(variant, "Namespace")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    pod, container = pod_of(variant), container_of(variant)
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers", "ephemeralContainers"} & pod.keys()
    volumes = {kind for volume in pod["volumes"] for kind in volume if kind != "name"}
    assert volumes <= {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "secret"}
    assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, 1000)
    assert pod["securityContext"]["seccompProfile"]["type"] in {"RuntimeDefault", "Localhost"}
    security = container["securityContext"]
    assert security == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not any("hostPort" in port for port in container["ports"])


def test_probes_and_ports_are_the_services_own() -> None:
    container, service = container_of("base"), one("base", "Service")
    (port,) = container["ports"]
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert f"EXPOSE {port['containerPort']}\n" in dockerfile
    assert [each["targetPort"] for each in service["spec"]["ports"]] == [port["name"]]
    paths = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    assert {kind: probe["path"] for kind, probe in paths.items()} == {
        "startup": "/health/live",
        "liveness": "/health/live",
        "readiness": "/health/ready",
    }
    assert {probe["port"] for probe in paths.values()} == {port["name"]}
    named = {service["metadata"]["name"] + rest for rest in ("", ".tilewise", ".tilewise.svc.cluster.local")}
    assert named <= set(environment("base")["TILEWISE_HOSTS"].split(","))
    stops = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod_of("base")["terminationGracePeriodSeconds"] >= stops + 30


def test_whatever_selects_the_pod_selects_it() -> None:
    pod = one("base", "Deployment")["spec"]["template"]["metadata"]["labels"]
    selectors = [
        one("base", "Deployment")["spec"]["selector"]["matchLabels"],
        one("base", "Service")["spec"]["selector"],
        one("base", "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        one("base", "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
    ]
    assert all(selector.items() <= pod.items() and selector for selector in selectors)
    policy = one("base", "NetworkPolicy")["spec"]
    assert (policy["policyTypes"], policy["egress"]) == (["Ingress", "Egress"], [])
    assert all(rule["from"] and rule["ports"] for rule in policy["ingress"])


def test_the_key_is_a_secret_of_which_no_manifest_has_the_value() -> None:
    assert environment("base")["TILEWISE_AUTH"] == "keys"
    path = Path(environment("base")["TILEWISE_ADMIN_KEY_FILE"])
    (secret,) = (volume for volume in pod_of("base")["volumes"] if "secret" in volume)
    (mount,) = (mount for mount in container_of("base")["volumeMounts"] if mount["name"] == secret["name"])
    assert (mount["mountPath"], mount["readOnly"]) == (str(path.parent), True)
    assert not [document for document in rendered("base") if document["kind"] == "Secret"]
    guide = (ROOT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
    assert re.search(rf"create secret generic {secret['secret']['secretName']} .*{path.name}=", guide)


def test_a_gpu_comes_by_the_device_plugin_or_by_a_claim() -> None:
    assert "nvidia.com/gpu" not in container_of("base")["resources"]["limits"]
    assert container_of("device-plugin")["resources"]["limits"]["nvidia.com/gpu"] == 1
    (claim,), template = pod_of("dra")["resourceClaims"], one("dra", "ResourceClaimTemplate")
    assert claim["resourceClaimTemplateName"] == template["metadata"]["name"]
    assert container_of("dra")["resources"]["claims"] == [{"name": claim["name"]}]
    assert template["apiVersion"] == "resource.k8s.io/v1"


def rendered(variant: str) -> list[Document]:
    """What `kubectl kustomize` makes of a variant: its files, and the patches of those that it builds on."""
    folder = FOLDER / variant
    documents: list[Document] = []
    for name in kustomization(folder)["resources"]:
        path = (folder / name).resolve()
        documents += rendered(path.name) if path.is_dir() else list(yaml.safe_load_all(path.read_text("utf-8")))
    for patch in kustomization(folder).get("patches", []):
        target = patch["target"]
        (found,) = (
            each for each in documents if (each["kind"], each["metadata"]["name"]) == (target["kind"], target["name"])
        )
        assert found["apiVersion"] == f"{target['group']}/{target['version']}"
        for operation in yaml.safe_load(patch["patch"]):
            assert operation["op"] == "add"
            patched(found, operation["path"], operation["value"])
    return documents


def patched(document: Any, path: str, value: Any) -> None:
    """RFC 6902's add, to a member of an object that is there."""
    *names, last = (part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:])
    for name in names:
        document = document[int(name) if isinstance(document, list) else name]
    document[last] = value


def kustomization(folder: Path) -> Document:
    found: Document = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    assert (found["apiVersion"], found["kind"]) == ("kustomize.config.k8s.io/v1beta1", "Kustomization")
    return found


def one(variant: str, kind: str) -> Document:
    (found,) = (document for document in rendered(variant) if document["kind"] == kind)
    return found


def pod_of(variant: str) -> Document:
    found: Document = one(variant, "Deployment")["spec"]["template"]["spec"]
    return found


def container_of(variant: str) -> Document:
    (found,) = pod_of(variant)["containers"]
    return dict(found)


def environment(variant: str) -> dict[str, str]:
    return {pair["name"]: pair["value"] for pair in container_of(variant)["env"]}
