// A table with a field above it: rows that have all of the field's words stay.
document$.subscribe(() => {
  for (const box of document.querySelectorAll(".filtered")) {
    const rows = [...box.querySelectorAll("tbody tr")];
    const texts = rows.map((row) => row.textContent.toLowerCase());
    box.querySelector("input").addEventListener("input", (event) => {
      const words = event.target.value.toLowerCase().split(/\s+/);
      rows.forEach((row, i) => { row.hidden = !words.every((word) => texts[i].includes(word)); });
    });
  }
});
