// Puts the page together. `data-ready` of the document says how many milliseconds that took.

async function main() {
  const started = performance.now();
  if (typeof DecompressionStream === "undefined") throw new Error("this browser cannot unpack the page; one of 2023 or later can");
  await load();
  recall();
  const nextTheme = drawTheme();
  drawHeader();
  drawToolbar();
  drawTimeline();
  drawFlame();
  drawCallers();
  drawTable();
  drawLeaks();
  drawHolders();
  drawFindings();
  drawHistograms();
  drawThreads();
  drawProcesses();
  drawKeys(nextTheme);
  for (const link of document.querySelectorAll("#sections a")) {
    const section = document.querySelector(link.getAttribute("href"));
    link.hidden = section.hidden;
    // The address holds the choice: going to a section does not change it.
    link.addEventListener("click", (event) => { event.preventDefault(); section.scrollIntoView(); });
  }
  document.documentElement.dataset.ready = String(Math.round(performance.now() - started));
}

main().catch((error) => {
  document.getElementById("main").prepend(h("p", { class: "alarm" }, `The page cannot be shown: ${error.message}`));
  console.error(error);
});
