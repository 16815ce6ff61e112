"""Paged KV-cache bookkeeping: which block belongs to whom. The tensors live in the runner.

Each block is in exactly one state: free (empty), cached (nobody uses it, its contents may be asked for
again) or owned (reference count above zero). A full block is known by the hash of its tokens chained
with its predecessor's hash, so that one lookup per block finds the longest shared prefix.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence

from .request import Request


def hash_block(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """128-bit digest of a block's tokens and everything before them; equal in every process."""
    return hashlib.blake2b(array("q", token_ids).tobytes(), key=parent, digest_size=16).digest()


class BlockPool:
    """Hands out blocks, counts their owners and evicts the least recently used cached ones."""

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._ref_counts = [0] * num_blocks
        self._hash_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}

    @property
    def num_tokens(self) -> int:
        """How many tokens all blocks together hold."""
        return self.num_blocks * self.block_size

    @property
    def num_available(self) -> int:
        return len(self._free) + len(self._cached)

    @property
    def num_owned(self) -> int:
        return self.num_blocks - self.num_available

    @property
    def usage(self) -> float:
        return self.num_owned / self.num_blocks

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def match_prefix(self, request: Request) -> int:
        """Give an unadmitted request the cached blocks of its leading tokens; returns how many tokens.

        At least one token is left to compute, since its logits are what the request waits for.
        """
        if not self.enable_prefix_caching:
            return 0
        limit = (len(request.token_ids) - 1) // self.block_size
        self._extend_hashes(request, limit)
        matched: list[int] = []
        for digest in request.block_hashes[:limit]:
            block = self._block_of.get(digest)
            if block is None:
                break
            matched.append(block)
        for block in matched:
            self._acquire(block)
        request.block_ids.extend(matched)
        return len(matched) * self.block_size

    def peek_prefix(self, token_ids: Sequence[int]) -> int:
        """Estimate of the leading tokens that are cached now, without taking them.

        Safe to call from another thread: it only reads, and a stale answer is still an estimate.
        """
        digest, matched = b"", 0
        if not self.enable_prefix_caching:
            return 0
        for start in range(0, len(token_ids) - self.block_size, self.block_size):
            digest = hash_block(digest, token_ids[start : start + self.block_size])
            if digest not in self._block_of:
                break
            matched += self.block_size
        return matched

    def can_grow(self, request: Request, num_tokens: int) -> bool:
        return self.blocks_for(num_tokens) - len(request.block_ids) <= self.num_available

    def grow(self, request: Request, num_tokens: int) -> None:
        """Make room for the request's first `num_tokens` tokens; `can_grow` must hold."""
        for _ in range(self.blocks_for(num_tokens) - len(request.block_ids)):
            request.block_ids.append(self._take())

    def publish(self, request: Request, since: int) -> None:
        """Offer the blocks filled since position `since` to later requests with the same leading tokens.

        When two requests compute the same block at once, the first one becomes the shared copy and the
        second keeps its own until it ends.
        """
        if not self.enable_prefix_caching:
            return
        full = request.num_computed // self.block_size
        self._extend_hashes(request, full)
        for index in range(since // self.block_size, full):
            self._register(request.block_ids[index], request.block_hashes[index])

    def release(self, request: Request) -> None:
        """Give all blocks back. The last ones become the first to be evicted: prefixes live longest."""
        for block in reversed(request.block_ids):
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                if block in self._hash_of:
                    self._cached[block] = None
                else:
                    self._free.append(block)
        request.block_ids.clear()

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix; blocks in use stay with their owners."""
        self._free.extend(self._cached)
        self._cached.clear()
        self._hash_of.clear()
        self._block_of.clear()

    def check(self, owners: Sequence[Request]) -> None:
        """Raise RuntimeError unless every block is in exactly one state and the counts add up."""
        counts = [0] * self.num_blocks
        for request in owners:
            for block in request.block_ids:
                counts[block] += 1
        owned = {block for block, count in enumerate(counts) if count}
        free, cached = set(self._free), set(self._cached)
        problems = [
            (counts != self._ref_counts, "reference counts differ from what requests hold"),
            (len(free) != len(self._free), "a block is free twice"),
            (bool(free & cached or free & owned or cached & owned), "a block is in two states"),
            (len(free) + len(cached) + len(owned) != self.num_blocks, "a block is lost"),
            (not cached <= self._hash_of.keys(), "a cached block has no hash"),
            (bool(free & self._hash_of.keys()), "a free block has a hash"),
            ({b: h for h, b in self._block_of.items()} != self._hash_of, "hash tables disagree"),
        ]
        for failed, text in problems:
            if failed:
                raise RuntimeError(f"KV-cache bookkeeping is broken: {text}")

    def _extend_hashes(self, request: Request, num_blocks: int) -> None:
        for index in range(len(request.block_hashes), num_blocks):
            parent = request.block_hashes[index - 1] if index else b""
            start = index * self.block_size
            request.block_hashes.append(
                hash_block(parent, request.token_ids[start : start + self.block_size])
            )

    def _acquire(self, block: int) -> None:
        self._cached.pop(block, None)
        self._ref_counts[block] += 1

    def _take(self) -> int:
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            del self._block_of[self._hash_of.pop(block)]
        self._ref_counts[block] = 1
        return block

    def _register(self, block: int, digest: bytes) -> None:
        if digest not in self._block_of and block not in self._hash_of:
            self._block_of[digest] = block
            self._hash_of[block] = digest
