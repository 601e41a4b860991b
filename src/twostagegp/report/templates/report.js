"use strict";
// The page is complete without this script. It adds a slider for the level of the intervals, the
// details of a point that is touched, a choice of the slice that is shown, and sortable tables.
(function () {
  function all(selector, root) {
    return Array.prototype.slice.call((root || document).querySelectorAll(selector));
  }
  function say(value) {
    return String(value).replace("-", "\u2212");
  }

  all("[data-plot]").forEach(function (box) {
    var data = JSON.parse(box.querySelector("script").textContent);
    var svg = box.querySelector("svg");
    var groups = all("g.point", svg);
    var slider = box.querySelector("input");
    var words = box.querySelector("[data-words]");
    var row = box.querySelector("[data-row]");
    var level = data.levels[45];
    var picked = -1;

    // An end is a number of standard deviations, or one value for each point.
    function place(end, i) {
      return Array.isArray(end) ? end[i] : data.points[i][2] + end * data.points[i][3];
    }
    function show(index) {
      if (picked >= 0) { groups[picked].classList.remove("picked"); }
      picked = index;
      var p = data.points[index];
      groups[index].classList.add("picked");
      row.textContent = "Row " + p[0] + ": observed " + say(p[1]) + ", predicted " + say(p[2]) +
        ", " + level.level + " % interval " + say(place(level.low, index).toPrecision(4)) +
        " to " + say(place(level.high, index).toPrecision(4)) + ".";
    }
    function move() {
      level = data.levels[Number(slider.value) - data.levels[0].level];
      groups.forEach(function (group, i) {
        var p = data.points[i];
        var low = place(level.low, i);
        var high = place(level.high, i);
        var line = group.querySelector("line");
        var kind = low <= p[1] && p[1] <= high ? "in" : "off";
        line.setAttribute("y1", (data.offset + data.slope * low).toFixed(1));
        line.setAttribute("y2", (data.offset + data.slope * high).toFixed(1));
        line.setAttribute("class", kind);
        group.querySelector("circle").setAttribute("class", kind);
      });
      words.textContent = "At " + level.level + " %: " + level.inside + " of " + data.n +
        " outcomes (" + level.share + ") lie in their interval, " + level.verdict +
        " (a calibrated model: " + level.from + " to " + level.to +
        "). A typical interval is ± " + level.half + ".";
      if (picked >= 0) { show(picked); }
    }
    function nearest(event) {
      var frame = svg.getBoundingClientRect();
      var scale = svg.viewBox.baseVal.width / frame.width;
      var x = (event.clientX - frame.left) * scale;
      var y = (event.clientY - frame.top) * scale;
      var best = -1, least = 900;
      groups.forEach(function (group, i) {
        var c = group.querySelector("circle");
        var dx = c.cx.baseVal.value - x, dy = c.cy.baseVal.value - y;
        if (dx * dx + dy * dy < least) { least = dx * dx + dy * dy; best = i; }
      });
      if (best >= 0) { show(best); }
    }
    all("[data-script]", box).forEach(function (part) { part.hidden = false; });
    slider.addEventListener("input", move);
    svg.addEventListener("pointermove", nearest);
    svg.addEventListener("click", nearest);
    svg.setAttribute("tabindex", "0");
    svg.addEventListener("keydown", function (event) {
      var step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step) { return; }
      event.preventDefault();
      show((picked + step + groups.length) % groups.length);
    });
    slider.value = "95";
    move();
  });

  all("[data-chooser]").forEach(function (box) {
    var figures = all("figure", box);
    if (figures.length < 2) { return; }
    var control = box.querySelector(".control");
    var select = control.querySelector("select");
    function choose() {
      figures.forEach(function (figure, i) {
        figure.hidden = select.value !== "all" && Number(select.value) !== i;
      });
      box.querySelector(".pictures").classList.toggle("one", select.value !== "all");
    }
    control.hidden = false;
    select.addEventListener("change", choose);
    choose();
  });

  all("table.sortable").forEach(function (table) {
    var body = table.tBodies[0];
    all("thead th", table).forEach(function (head, column) {
      var button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.textContent = "";
      head.appendChild(button);
      button.addEventListener("click", function () {
        var up = head.getAttribute("aria-sort") !== "ascending";
        all("thead th", table).forEach(function (other) { other.removeAttribute("aria-sort"); });
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        function key(line) {
          var cell = line.cells[column];
          return cell.dataset.key === undefined ? cell.textContent : Number(cell.dataset.key);
        }
        all("tr", body).sort(function (one, two) {
          var a = key(one), b = key(two);
          var order = typeof a === "number" && typeof b === "number"
            ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
          return up ? order : -order;
        }).forEach(function (line) { body.appendChild(line); });
      });
    });
  });
}());
