"""The look of the report page, light and dark, without anything from outside."""

STYLE = """
:root {
  color-scheme: light dark;
  --ink: #1d2430; --soft: #5b6675; --faint: #d5dae1; --paper: #ffffff; --card: #f6f8fa;
  --good: #1a7f42; --good-back: #e2f4e8; --bad: #b3302d; --bad-back: #fbe6e5;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e4e8ee; --soft: #9aa5b4; --faint: #39424e; --paper: #14181e; --card: #1c222a;
    --good: #5fcf8a; --good-back: #173524; --bad: #f08a86; --bad-back: #43201f;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, Ubuntu, "DejaVu Sans", sans-serif;
}
main { max-width: 1040px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 25px; line-height: 1.25; margin: 0 0 4px; }
h2 { font-size: 18px; margin: 36px 0 8px; }
p { margin: 6px 0; }
.soft, figcaption { color: var(--soft); }
.verdict {
  display: flex; gap: 18px; align-items: center; border-radius: 12px; padding: 16px 20px;
  margin: 18px 0;
}
.verdict b { font-size: 30px; letter-spacing: .04em; }
.good { color: var(--good); } .bad { color: var(--bad); }
.verdict.good { background: var(--good-back); } .verdict.bad { background: var(--bad-back); }
.verdict span { color: var(--ink); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 10px; }
.card { background: var(--card); border-radius: 10px; padding: 10px 14px; }
.card b { display: block; font-size: 20px; font-variant-numeric: tabular-nums; }
.card span { color: var(--soft); font-size: 13px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 5px 14px 5px 0; vertical-align: top; }
th { color: var(--soft); font-weight: 600; font-size: 13px; }
tr + tr td, thead + tbody td { border-top: 1px solid var(--faint); }
td.number, th.number { text-align: right; white-space: nowrap; }
.nowrap { white-space: nowrap; }
td:nth-last-child(2):nth-child(2) { max-width: 430px; }
figure { margin: 10px 0; } figcaption { font-size: 13px; margin-top: 2px; }
figure svg { display: block; width: 100%; height: auto; }
code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 13px; }
td code { overflow-wrap: anywhere; }
footer { margin-top: 44px; color: var(--soft); font-size: 13px; }
"""
