"""The style sheet of a run's page: one column on a phone, nothing loaded from elsewhere."""

from __future__ import annotations

CSS = """
:root { color-scheme: light; --ink: #111; --soft: #5c5c5c; --line: #d8d8d8; --accent: #0072b2; --warn: #b34700; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1rem; color: var(--ink); background: #fff;
  font: 15px/1.45 system-ui, "Noto Sans", sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: .2rem 0; }
h2 { font-size: 1.15rem; margin: 2rem 0 .6rem; padding-bottom: .2rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.1rem 0 .3rem; }
h4 { font-size: .85rem; margin: .9rem 0 .3rem; color: var(--soft); font-weight: 600; }
p { margin: .35rem 0; }
.note, .file { color: var(--soft); font-size: .85rem; }
.unsure, .missing { color: var(--warn); font-size: .9rem; }
.sure { font-size: .9rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .6rem; margin: 1rem 0; }
.tile { border: 1px solid var(--line); border-radius: 6px; padding: .5rem .7rem; }
.tile b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: .8rem; }
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: .5rem; }
.curves img { width: 100%; max-width: 27rem; height: auto; }
.scroll { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem .2rem 0; text-align: right; border-bottom: 1px solid #ececec; white-space: nowrap; }
th { color: var(--soft); font-weight: 600; }
th:first-child, td:first-child { text-align: left; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; font-size: .9rem; margin: .5rem 0; }
dt { color: var(--soft); }
dd { margin: 0; }
code, pre { font: .78rem/1.5 ui-monospace, "DejaVu Sans Mono", monospace; }
pre { white-space: pre-wrap; background: #f6f6f6; padding: .6rem; border-radius: 6px; margin: .4rem 0; }
details { margin: .35rem 0; }
summary { cursor: pointer; color: var(--accent); font-size: .9rem; }
article { border: 1px solid var(--line); border-radius: 8px; padding: .8rem; margin: 0 0 .9rem; }
.source { color: var(--soft); font-size: .9rem; }
.tree { list-style: none; margin: 0; padding: 0 0 0 min(1.2rem, 2.2vw); }
.tree.root { padding: 0; font-size: 1rem; }
.tree .tree > li { border-left: 1px solid var(--line); padding: .08rem 0 .08rem min(.6rem, 1.5vw); }
.p { color: var(--accent); font-size: .82rem; font-variant-numeric: tabular-nums; }
.eos { color: var(--soft); font-size: .82rem; }
.lost { color: var(--soft); font-weight: normal; }
.tree b { font-size: .82rem; margin-left: .5rem; font-variant-numeric: tabular-nums; }
.forced { display: flex; flex-wrap: wrap; gap: .35rem; max-width: 100%; align-items: flex-start; }
.box { border: 1px solid #9a9a9a; border-radius: 5px; padding: .1rem .45rem; font-size: .9rem; }
.box.single { border-color: var(--accent); background: #eef3f8; }
.box div { display: flex; justify-content: space-between; gap: .7rem; }
.box i { color: var(--soft); font-size: .78rem; font-style: normal; align-self: center;
  font-variant-numeric: tabular-nums; }
.more { color: var(--soft); font-size: .82rem; }
.heat text { fill: var(--ink); }
.heat .frame { fill: none; stroke: var(--line); }
.heat .cell { fill: #222; stroke: var(--accent); stroke-width: 1; }
@media print { article { break-inside: avoid; } }
"""
