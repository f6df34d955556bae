"""Prefix misses: requests of a study that nearly hit what an earlier one left, and why they do not."""

from __future__ import annotations

from typing import Any

import streamlit as st

from counterproof.run.targets.explain_miss import explain_pair
from counterproof_dashboard import cache, data, misses, selection
from counterproof_dashboard.data import Study
from counterproof_dashboard.misses import Prompts
from counterproof_dashboard.text import count, plain, spelled


def page() -> None:
    """Draw the page."""
    study = selection.one("Prefix misses", "pages/misses.py")
    blocks = misses.blocks(study) if study.status != data.OTHER_SCHEMA else []
    if not blocks:
        st.info("No sealed workload of this study is recorded, so nothing can be said about its prompts.")
        return
    block = int(st.selectbox("Block", blocks, key="miss-block") or blocks[0])
    found = cache.workload(study.name, block)
    if found.reason:
        st.error(plain(found.reason))
        return
    effective = misses.effective(study, block)
    if effective is None:
        st.info("The size of a KV block is not recorded, so what can be hit is not known.")
        return
    size = misses.block_tokens(effective)
    st.caption(
        plain(
            f"{count(found.requests, 'request')} of block {block}; a cache keeps whole blocks of "
            f"{count(size, 'token')}. Compared in the order of the workload, as if each were done before the next; no "
            f"request was sent and nothing was measured for this page. A sealed request has no tenant."
        )
    )
    if found.requests > len(found.prompts):
        st.warning(f"The first {len(found.prompts):,} requests were compared, the others were not.")
    _nearest(study, block, size)
    _pair(study, block, found.prompts, effective)


def _nearest(study: Study, block: int, size: int) -> None:
    st.subheader("Nearest misses", anchor=False)
    found = cache.near_misses(study.name, block, size)
    if not found:
        st.success("No request computes again what it shares with an earlier one.")
        return
    st.dataframe(misses.table(study, block, found), hide_index=True)
    st.caption(
        "Same at the start or the end: tokens that both prompts have there. Only the start can be hit, in whole blocks, "
        "and one token is always computed. Hit by: what the runs of this block recorded."
    )


def _pair(study: Study, block: int, prompts: Prompts, effective: dict[str, Any]) -> None:
    st.subheader("Why did it miss?", anchor=False)
    if len(prompts) < 2:
        st.info("A block of one request has nothing to compare.")
        return
    found = cache.near_misses(study.name, block, misses.block_tokens(effective))
    first, second = (found[0].earlier, found[0].request) if found else (0, 1)
    numbers = range(len(prompts))
    left, right = st.columns(2)
    one = left.selectbox("Asked first", numbers, index=first, key=f"miss-first-{block}")
    other = right.selectbox("Asked after it", numbers, index=second, key=f"miss-second-{block}")
    decoder, silent = cache.decoder(*misses.tokenizer_of(study, block))
    if silent:
        st.info(plain(f"Token ids are shown instead of text: {silent}."))
    _explained(explain_pair(prompts[one], prompts[other], effective, decoder))


def _explained(found: dict[str, Any]) -> None:
    tokens = found["tokens"]
    st.markdown(
        plain(
            f"{count(tokens[0], 'token')} and {count(tokens[1], 'token')}; the first {found['common_tokens']:,} are the "
            f"same, of which the second request can hit {found['hit_tokens']:,}."
        )
    )
    for cause in found["causes"]:
        st.warning(f"**{plain(cause['kind'])}**: {plain(cause['detail'])}")
    if not found["causes"]:
        st.success("Everything that both have in common is hit.")
    if found["token"] is None:
        st.caption("One prompt begins with all of the other.")
        return
    first, second = found["ids"]
    st.markdown(plain(f"They part at token {found['token']:,}: id {first} and id {second}."))
    st.code(
        "\n".join(
            f"{name:<11}{spelled(found[field])}"
            for name, field in (("before", "before"), ("first", "first"), ("second", "second"))
        ),
        language=None,
        wrap_lines=True,
    )


page()
