"""The look of report.html: one style sheet, light and dark by the reader's own setting, no script, no resource."""

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #fff; --raised: #f6f7f8; --ink: #16191d; --soft: #5a626c; --line: #dfe2e6; --grid: #eceef0;
  --first: #1f63b5; --second: #c2571a; --good: #1c7a48; --bad: #b3261e; --mask: #cfd4da;
  --commit: #6ea8e8; --missing: #d7ecdf; --wrong: #f8dcd9;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171b; --raised: #1c2026; --ink: #e6e9ed; --soft: #9aa4b0; --line: #323942; --grid: #252b32;
    --first: #6aa9f0; --second: #ee9a5b; --good: #62c48d; --bad: #f08a80; --mask: #3d4650;
    --commit: #2a66ad; --missing: #1f4431; --wrong: #592a27;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif;
  font-variant-numeric: tabular-nums; }
main { max-width: 1040px; margin: 0 auto; padding: 44px 40px 72px; }
h1 { font-size: 30px; line-height: 1.2; letter-spacing: -.01em; margin: 0 0 6px; font-weight: 650;
  overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 56px 0 4px; font-weight: 650; }
h3 { font-size: 15px; margin: 28px 0 6px; font-weight: 650; }
p { margin: 0 0 12px; max-width: 76ch; }
.soft, .note { color: var(--soft); }
.note { font-size: 13px; }
.lead { font-size: 16px; color: var(--soft); max-width: 70ch; }
code, .mono { font-size: 13px;
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.missing { border-left: 3px solid var(--second); padding: 2px 0 2px 12px; margin: 12px 0; }

.headline { display: grid; grid-template-columns: repeat(3, 1fr); gap: 0 36px; margin: 30px 0 0;
  border-top: 1px solid var(--line); border-bottom: 1px solid var(--line); padding: 18px 0 16px; }
.headline .value { font-size: 38px; line-height: 1.15; font-weight: 600; letter-spacing: -.02em; }
.headline .what { font-weight: 600; }
.headline .beside { color: var(--soft); font-size: 13px; }

.facts { display: grid; grid-template-columns: repeat(3, 1fr); gap: 0 36px; margin-top: 14px; }
.facts h3 { margin: 10px 0 4px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 3px 14px; margin: 0; font-size: 14px; }
dt { color: var(--soft); }
dd { margin: 0; text-align: right; overflow-wrap: anywhere; }

.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; margin: 12px 0 8px; }
th { font-weight: 500; color: var(--soft); text-align: right; padding: 4px 0 6px 18px; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
td { text-align: right; padding: 4px 0 4px 18px; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
th.left, td.left { text-align: left; }
tr.part td { padding-top: 16px; font-weight: 650; text-align: left; }
tr.part:first-child td { padding-top: 8px; }
tr.model td { font-weight: 650; }
tr.last td { border-bottom: 1px solid var(--line); padding-bottom: 8px; }
.tag { display: inline-block; font-size: 12px; font-weight: 500; color: var(--soft); border: 1px solid var(--line);
  border-radius: 9px; padding: 0 8px; margin-left: 8px; line-height: 17px; }
svg { display: block; }
svg text { font-family: inherit; fill: var(--soft); }
.bar { display: inline-block; vertical-align: middle; }
.bar .span { stroke: var(--grid); stroke-width: 2; }
.bar .interval { stroke: var(--soft); stroke-width: 2; }
.bar circle { fill: var(--soft); }
.bar.strong .interval { stroke: var(--first); }
.bar.strong circle { fill: var(--first); }

.loss { width: 100%; height: auto; margin-top: 16px; }
.loss .grid { stroke: var(--grid); }
.loss .axis { stroke: var(--line); }
.loss text { font-size: 12.5px; }
.loss .curve { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
.loss .label { font-weight: 600; font-size: 13px; }
.loss .curve.c0 { stroke: var(--first); } .loss .label.c0, .loss .dots.c0 { fill: var(--first); }
.loss .curve.c1 { stroke: var(--second); } .loss .label.c1, .loss .dots.c1 { fill: var(--second); }

.transition { border-top: 1px solid var(--line); padding: 16px 0 8px; margin-top: 14px; }
.transition header { display: flex; gap: 12px; align-items: baseline; flex-wrap: wrap; }
.verdict { font-weight: 650; }
.right { color: var(--good); } .wrong { color: var(--bad); }
.history { margin: 8px 0 10px; padding: 8px 12px; background: var(--raised); border-radius: 5px; white-space: pre-wrap;
  overflow-wrap: anywhere; }
.history .act { color: var(--first); }
.history .now { font-weight: 650; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 0 32px; }
.pair .text { white-space: pre-wrap; overflow-wrap: anywhere; min-height: 1.5em; }
.pair .side { color: var(--soft); font-size: 13px; }
mark { color: inherit; border-radius: 2px; padding: 1px 0; }
.truth mark { background: var(--missing); text-decoration: underline; text-decoration-color: var(--good); }
.prediction mark { background: var(--wrong); text-decoration: line-through; text-decoration-color: var(--bad); }
details { margin: 6px 0; font-size: 13px; }
summary { color: var(--soft); cursor: pointer; }
details div { white-space: pre-wrap; overflow-wrap: anywhere; padding: 6px 0 0; }

.denoising { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; margin: 8px 0; }
.denoising .row, .denoising .count { font-family: system-ui, -apple-system, "Segoe UI", Arial, sans-serif;
  font-size: 12px; font-variant-numeric: tabular-nums; }
.denoising .token { font-size: 12px; }
.denoising .old { fill: var(--soft); }
.denoising .new, .denoising .final { fill: var(--ink); }
.denoising .end { fill: var(--soft); font-style: italic; }
.denoising .final { font-weight: 650; }
.denoising .fresh { fill: var(--commit); }
.denoising .mask { fill: var(--mask); }
.denoising .later { fill: none; stroke: var(--grid); }
.denoising .block { stroke: var(--line); stroke-dasharray: 2 3; }
.denoising .axis { stroke: var(--line); }
.legend { display: flex; gap: 22px; flex-wrap: wrap; font-size: 13px; color: var(--soft); margin: 8px 0; }
.legend span { display: inline-flex; align-items: center; gap: 7px; }
.legend i { display: inline-block; width: 22px; height: 13px; border-radius: 3px; }
.legend .shades { width: 66px;
  background: linear-gradient(to right, color-mix(in srgb, var(--commit) 15%, transparent), var(--commit)); }
.legend .hidden { background: var(--mask); }
.legend .waiting { border: 1px solid var(--line); }
footer { margin-top: 56px; border-top: 1px solid var(--line); padding-top: 14px; }
@media (max-width: 760px) {
  main { padding: 28px 18px 48px; }
  .headline, .facts, .pair { grid-template-columns: 1fr; gap: 14px; }
}
@media print { main { padding: 0; } .transition { break-inside: avoid; } }
"""
