"""The launch of rank_k: its threads, shared memory and registers, for a config and a problem."""

from __future__ import annotations

from typing import Final

from kernels.common.division import divider
from kernels.launch import Plan
from kernels.problem import Problem
from kernels.rules import VECTOR_BYTES, WARP, blocks, real_bytes, registers_granted
from kernels.space import Config

# Registers beside sums and operands, as NVRTC 12.9 allots them: addresses, sizes, and what is lost between the aligned
# packs that operands live in.
ADDRESSES: Final = 32


def threads(config: Config) -> int:
    """Threads of a block."""
    return config["BM"] // config["TM"] * (config["BN"] // config["TN"])


def warp_tile(config: Config) -> tuple[int, int]:
    """Rows and columns of a warp's part of the tile."""
    return WARP // config["LANES_N"] * config["TM"], config["LANES_N"] * config["TN"]


def lines(config: Config, problem: Problem) -> tuple[int, int]:
    """Elements of shared memory for each row of A's tile and each column of B's: LD_A and LD_B of whole_k.h."""
    vector, bk = VECTOR_BYTES // real_bytes(problem), config["BK"]
    k_major = (bk // vector | 1) * vector
    return bk if problem.trans_a else k_major, k_major if problem.trans_b else bk


def shared_bytes(config: Config, problem: Problem) -> int:
    """Bytes of BK of both operands, with their padding."""
    of_a, of_b = lines(config, problem)
    return (config["BM"] * of_a + config["BN"] * of_b) * real_bytes(problem)


register_limit: Final = registers_granted(threads)


def registers(config: Config, problem: Problem) -> int:
    """The least registers of a thread that spills nothing: a K-major operand is read by the pack."""
    words, tm, tn = real_bytes(problem) // 4, config["TM"], config["TN"]
    pack = VECTOR_BYTES // 4
    operands = (words if problem.trans_a else pack) * tm + (pack if problem.trans_b else words) * tn
    return words * tm * tn + operands + ADDRESSES


def plan(config: Config, problem: Problem) -> Plan:
    """The launch of a legal config."""
    across, down = -(-problem.n // config["BN"]), -(-problem.m // config["BM"])
    return Plan(
        grid=blocks(config, problem),
        block=(threads(config), 1),
        shared_bytes=shared_bytes(config, problem),
        scalars=(divider(across), divider(down)),
    )
