// Keeps an open page up to date. htmx reads the page again and changes what differs, so that what
// somebody types, has opened or looks at stays; this script decides when. Without it, nothing moves.
"use strict";
(() => {
  const again = document.getElementById("again");
  if (!again) return;
  const notice = document.getElementById("notice");
  const stream = document.getElementById("stream");
  const live = () => document.getElementById("live");
  let isFollowing = false; // whether the server tells of changes
  let since = new Date(); // when the page was last read
  let pause = 0; // milliseconds to the next try if the last one did not succeed
  let isGone = false; // whether these pages answer no more
  let timer, focus, href, followed;

  function plan() {
    clearTimeout(timer);
    const { refresh, poll } = again.dataset;
    // Nobody tells of what has no change, such as the words of a time, or of a server that hangs.
    const wait = pause || 1000 * (isFollowing ? Number(refresh) || 60 : Number(poll));
    if (!isGone && !document.hidden) timer = setTimeout(look, wait);
  }

  function look() {
    if (!isGone && !document.hidden) htmx.trigger(again, "look");
  }

  // A page that nobody has seen yet holds none of the few connections of a browser.
  function connect() {
    if (stream && !isFollowing && !isGone && !document.hidden) htmx.trigger(stream, "follow");
  }

  function isSelecting() {
    const selection = document.getSelection();
    return !selection.isCollapsed && selection.containsNode(live(), true);
  }

  function tell(text) {
    if (notice.textContent !== text) notice.textContent = text;
    notice.hidden = !text;
  }

  again.addEventListener("htmx:before:swap", (event) => {
    if (isSelecting()) {
      event.preventDefault();
      pause = 2000;
      return;
    }
    focus = live().contains(document.activeElement) ? document.activeElement : null;
    href = focus && focus.getAttribute("href");
    // Output whose end is shown goes on to show its end.
    followed = [...live().querySelectorAll("pre")].filter(
      (each) => each.scrollTop && each.scrollTop + each.clientHeight >= each.scrollHeight - 4,
    );
  });

  again.addEventListener("htmx:after:swap", () => {
    for (const each of followed) each.scrollTop = each.scrollHeight;
    // A row that has moved keeps the focus: Enter must not open another one.
    if (!href || (document.activeElement === focus && focus.getAttribute("href") === href)) return;
    focus.blur();
    live().querySelector(`[href="${CSS.escape(href)}"]`)?.focus({ preventScroll: true });
  });

  again.addEventListener("htmx:before:request", () => {
    pause = -pause; // a swap that is put off sets it
  });

  again.addEventListener("htmx:finally:request", (event) => {
    const status = event.detail.ctx.response?.status ?? 0;
    if (status === 200) {
      since = new Date();
      pause = Math.max(0, pause);
      tell("");
    } else if (status >= 400 && status < 500) {
      isGone = true;
      tell(status === 404 ? "This is gone." : "You may no longer see this page. Log in again.");
    } else {
      pause = Math.min(60000, Math.max(2000, 2 * Math.abs(pause)));
      tell(`Not connected since ${since.toLocaleTimeString()}. It is tried again.`);
    }
    plan();
  });

  function follow(is) {
    isFollowing = is;
    plan();
  }
  stream?.addEventListener("htmx:sse:after:connection", () => follow(true));
  stream?.addEventListener("htmx:sse:error", () => follow(false));
  stream?.addEventListener("htmx:sse:close", () => follow(false));
  stream?.addEventListener("htmx:sse:before:connection", (event) => {
    if (isGone) event.preventDefault();
  });

  document.addEventListener("visibilitychange", () => {
    plan();
    look();
    connect();
  });
  setTimeout(connect); // htmx begins before that
  plan();
})();
