// The winner as files of other programs: what to ask for, to download or to copy.

import { card, copyButton, h } from "./elements.js";
import { at, query } from "./service.js";

const TARGETS = {
  cu: "CUDA C++ source and a check", cupy: "CuPy module", cpp: "C++ host program", c: "C host program", rust: "Rust crate", numba: "Numba",
  "cuda-core": "cuda.core", dll: "DLL for C, VBA, MATLAB", ptx: "PTX", opencl: "OpenCL source and a check", json: "config as JSON",
};

export function takeAway(problem, device) {
  const address = (target) => at(`take/${target}?${query({ ...problem, device })}`);
  const row = ([target, told]) => h("li", {}, h("a", { href: address(target), download: "" }, target), ` ${told} `,
    copyButton("Copy curl", () => `curl -o tilewise-${target}.zip '${address(target)}'`));
  return card("Take it away", { span: 12, id: "take", text: "The winner as files that build and run without the service." }, h("ul", { class: "takes" }, Object.entries(TARGETS).map(row)));
}
