// A click on a column's head sorts the table by it, numbers as numbers, the largest first; another click turns it round.
function sort(head) {
  const table = head.closest("table"), body = table.tBodies[0], at = head.cellIndex;
  const numeric = head.classList.contains("n");
  const now = head.getAttribute("aria-sort");
  const up = now ? now === "descending" : !numeric;
  const key = (row) => numeric ? parseFloat(row.cells[at].dataset.v ?? "NaN") : row.cells[at].textContent;
  const order = (a, b) => {
    const x = key(a), y = key(b);
    if (!numeric) return (up ? 1 : -1) * x.localeCompare(y, undefined, {numeric: true});
    if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y);
    return up ? x - y : y - x;
  };
  [...body.rows].sort(order).forEach((row) => body.append(row));
  table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
}
document.querySelectorAll("th").forEach((head) => {
  head.addEventListener("click", () => sort(head));
  head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(head); });
});
