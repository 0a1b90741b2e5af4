"""Faults of caches: keys and values, positions, pages, prefixes, a drafter's memory."""

from bisect import insort
from dataclasses import replace

from faults.fault import Fault
from foreword.engine import engine
from foreword.engine.kv_cache import KVCache
from foreword.model.executors.native.executor import NativeExecutor
from foreword.model.kv import prefixes
from foreword.model.kv.pages import PagePool
from foreword.model.kv.reads import Read


def rejected_keys_kept(patch, llm):
    """Leave the keys of an accepted branch behind those of a rejected one."""
    patch.setattr(llm.target, "move", lambda *_: None)


def late_after_rejection(patch, _llm):
    """Place each token one position late from the first rejection on."""
    rejected: set[int] = set()
    commit, depths = engine.commit, Read.depths.fget

    def noted(request, tokens, origins, measured, drafted):
        if drafted >= len(tokens):
            rejected.add(request.id)
        return commit(request, tokens, origins, measured, drafted)

    patch.setattr(engine, "commit", noted)
    late = property(lambda read: [at + (read.id in rejected) for at in depths(read)])
    patch.setattr(Read, "depths", late)


def positions_by_row(patch, _llm):
    """Place a draft token of a tree by its row, not by its depth."""
    patch.setattr(Read, "depths", property(lambda read: [*range(len(read.tokens))]))


def sibling_seen(patch, _llm):
    """Let a draft token attend to the sibling before it."""
    exact = NativeExecutor._describe_span

    def describe(executor, described, span):
        parents = span.read.parents
        if parents:
            last: dict[int, int] = {}
            seen = []
            for node, parent in enumerate(parents):
                seen.append(last.get(parent, parent))
                last[parent] = node
            span = replace(span, read=replace(span.read, parents=seen))
        exact(executor, described, span)

    patch.setattr(NativeExecutor, "_describe_span", describe)


def page_given_twice(patch, llm):
    """Give a page of a running request away where another one is preempted."""
    exact = KVCache.give_up

    def give_up(cache, request):
        exact(cache, request)
        pool = llm.target.backend.pool
        for table in [*pool._tables.values()][:1]:
            if table.pages[-1] not in pool._free:
                insort(pool._free, table.pages[-1])

    patch.setattr(KVCache, "give_up", give_up)


def first_token_unread(patch, _llm):
    """Read a preempted text again without its first token."""
    exact = KVCache.begin

    def begin(cache, request, layers):
        hidden = exact(cache, request, layers)
        if request.produced and not request.cached:
            request.cached = 1
        return hidden

    patch.setattr(KVCache, "begin", begin)


def half_compared(patch, _llm):
    """Take pages of a text that begins alike for half a page."""
    exact = prefixes.key_of
    patch.setattr(prefixes, "key_of", lambda tokens: exact(tokens[:32]))


def written_while_shared(patch, _llm):
    """Note draft tokens as text, and write into pages that others use."""
    exact = PagePool.note

    def note(pool, id, start, tokens, chain, _final):
        exact(pool, id, start, tokens, chain, len(tokens))

    patch.setattr(PagePool, "note", note)
    patch.setattr(PagePool, "copy", lambda *_: None)
    for kind in PagePool.__subclasses__():
        if "copy" in vars(kind):
            patch.setattr(kind, "copy", lambda *_: None)


CACHE_FAULTS: dict[str, Fault] = {
    "keys of a rejected branch kept": Fault(rejected_keys_kept),
    "positions one late after a rejection": Fault(late_after_rejection, quick=True),
    "positions in a tree by row": Fault(positions_by_row, quick=True),
    "a sibling's key seen": Fault(sibling_seen),
    "a page given to two requests after preemption": Fault(page_given_twice),
    "the first token not read again after preemption": Fault(first_token_unread),
    "a prefix found by half a page": Fault(half_compared),
    "pages written while others use them": Fault(written_while_shared),
}
