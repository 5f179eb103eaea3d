"""Style and script of the pages."""

STYLE = """
:root{--bg:#f6f7f9;--fg:#1b1f24;--dim:#57606a;--card:#fff;--line:#d9dee5;--good:#116329;--bad:#b3141f;--open:#7d4e00;
--wait:#0550ae;--none:#57606a;--a:#0550ae;--b:#a63d00;--goodbg:#dafbe1;--badbg:#ffebe9;--openbg:#fff8c5;--waitbg:#ddf4ff}
@media (prefers-color-scheme:dark){:root{--bg:#0f1318;--fg:#e6eaef;--dim:#9aa4b0;--card:#181d24;--line:#313943;
--good:#3fb950;--bad:#ff7b72;--open:#d29922;--wait:#58a6ff;--none:#8b949e;--a:#58a6ff;--b:#f0883e;--goodbg:#12261a;
--badbg:#2d1315;--openbg:#2a2111;--waitbg:#10233a}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,"DejaVu Sans",sans-serif}
main{max-width:1100px;margin:0 auto;padding:20px}
a{color:var(--a)}:focus-visible{outline:3px solid var(--a);outline-offset:2px}
.hidden{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}.markers{position:absolute}
header{padding:18px 24px;border-radius:10px;border-left:8px solid var(--none);background:var(--card)}
header h1{margin:0;font-size:34px}header p{margin:4px 0;overflow-wrap:anywhere}.run,.next{color:var(--dim)}
header.valid{border-color:var(--good);background:var(--goodbg)}header.valid h1{color:var(--good)}
header.violated{border-color:var(--bad);background:var(--badbg)}header.violated h1{color:var(--bad)}
header.open{border-color:var(--open);background:var(--openbg)}header.open h1{color:var(--open)}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px 22px;margin:16px 0}
section.valid,section.none{padding:6px 22px;margin:8px 0}section.valid h2,section.none h2{font-size:16px;margin:2px 0}
section.violated{border-left:5px solid var(--bad)}section.open{border-left:5px solid var(--open)}
section.pending{border-left:5px solid var(--wait)}section:target{outline:3px solid var(--a)}
h2{font-size:19px;margin:4px 0 8px;display:flex;gap:12px;align-items:center;flex-wrap:wrap}
h3{font-size:15px;margin:14px 0 4px}
.small{font-size:12px;color:var(--dim);font-weight:normal}.about{margin:0 0 4px;color:var(--dim)}
.numbers{display:flex;flex-wrap:wrap;gap:8px 28px;margin:6px 0 14px}
.numbers div{display:flex;flex-direction:column}.numbers dd{margin:0;font-size:20px;font-weight:bold;
overflow-wrap:anywhere}.numbers dt{font-size:12px;color:var(--dim)}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(240px,1fr));gap:8px;list-style:none;padding:0}
.cards li{display:flex;overflow-wrap:break-word}
.card{flex:1;min-width:0;display:flex;gap:0 8px;padding:8px 12px;border:1px solid var(--line);
border-left:5px solid var(--none);border-radius:6px;color:inherit;text-decoration:none}
.card:hover{border-color:var(--a)}
.card span:last-child{margin-left:auto;
color:var(--bad);white-space:nowrap}
.card.valid{border-left-color:var(--good)}.card.valid b{color:var(--good)}
.card.violated{border-left-color:var(--bad);background:var(--badbg)}.card.violated b{color:var(--bad)}
.card.open{border-left-color:var(--open);background:var(--openbg)}.card.open b{color:var(--open)}
.card.pending{border-left-color:var(--wait);background:var(--waitbg)}.card.pending b{color:var(--wait)}
.card.none{color:var(--dim)}.card.none span:last-child{color:var(--dim);font-size:12px;white-space:normal;
overflow-wrap:anywhere;text-align:right}
.pill{font-size:13px;font-weight:bold;padding:1px 10px;border-radius:12px;background:var(--bg);white-space:nowrap}
.pill.valid{color:var(--good);background:var(--goodbg)}.pill.violated{color:var(--bad);background:var(--badbg)}
.pill.open{color:var(--open);background:var(--openbg)}.pill.pending{color:var(--wait);background:var(--waitbg)}
ul,ol{margin:6px 0;padding-left:26px}li,p,h2,h3{overflow-wrap:anywhere}.problem li{color:var(--open)}
article{border-top:1px solid var(--line);margin-top:10px}
article h3 code{color:var(--bad);font-size:14px}
figure{margin:8px 0;overflow-x:auto}figcaption{font-size:13px;color:var(--dim)}
svg{display:block;max-width:100%;height:auto}.cycle svg{max-width:none}
svg text{fill:var(--fg);font:12px system-ui,"DejaVu Sans",sans-serif}
svg .dim{fill:var(--dim)}svg .mono{font-family:"DejaVu Sans Mono",ui-monospace,monospace;font-size:11px}
svg .axis{stroke:var(--line);stroke-width:1;fill:none}svg .one{stroke:var(--a);fill:none;stroke-width:1.8}
svg .two{stroke:var(--b);fill:none;stroke-width:1.6}svg .dashed{stroke-dasharray:5 3}
svg .area{fill:var(--a);opacity:.15;stroke:none}
svg .died{stroke:var(--bad);stroke-width:1.5;stroke-dasharray:5 3}svg .born{stroke:var(--good);stroke-width:1.5;
stroke-dasharray:2 3}svg .diedtext{fill:var(--bad)}svg .borntext{fill:var(--good)}
svg .node{fill:var(--bg);stroke:var(--dim);stroke-width:1.2}svg .edge{fill:none;stroke-width:1.8;stroke:var(--dim)}
svg .ww,svg .order{stroke:var(--wait)}svg .wr{stroke:var(--good)}svg .rw{stroke:var(--bad)}
svg .rt,svg .realtime{stroke:var(--open)}svg path.rt,svg path.realtime{stroke-dasharray:6 3}
svg text.kind{font-weight:bold}svg text.halo{paint-order:stroke;stroke:var(--card);stroke-width:4px}
svg .bar{fill:var(--a);opacity:.75}svg .gone{fill:var(--bad)}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(460px,100%),1fr));gap:4px 20px}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:13px;margin:6px 0;width:100%}
td{border-top:1px solid var(--line);padding:3px 10px 3px 0;vertical-align:top;overflow-wrap:anywhere}
th{text-align:left;font-weight:normal;padding:3px 10px 3px 0}thead th{color:var(--dim);font-size:12px}
.proof td:first-child{width:44%}
.models{width:auto}.models th{padding-right:28px}
code,pre{font:12.5px "DejaVu Sans Mono",ui-monospace,monospace;overflow-wrap:anywhere}
summary{cursor:pointer;color:var(--a);font-size:13px}
summary h2{display:inline-flex;color:var(--text,inherit)}
@media (max-width:560px){main{padding:8px}section,header{padding:10px 12px}.proof,.proof tbody,.proof tr,.proof td{
display:block;width:auto!important}.proof thead{display:none}.models th{padding-right:8px}
.models .pill{padding:1px 4px;font-size:12px}.proof td+td{border:0}}
@media print{body{background:none}main{max-width:none;padding:0}section{border:0!important;padding:0}figure,tr{
break-inside:avoid}h2,h3{break-after:avoid}.cycle svg{max-width:100%}*{print-color-adjust:exact}}
"""

SCRIPT = """
addEventListener("hashchange",function(){var e=document.querySelector(location.hash||"#none");
if(e)e.querySelectorAll("details").forEach(function(d){d.open=true})});
addEventListener("beforeprint",function(){document.querySelectorAll("details").forEach(function(d){d.open=true})});
document.querySelectorAll("section article:nth-of-type(n+4) details").forEach(function(d){d.open=false});
"""
