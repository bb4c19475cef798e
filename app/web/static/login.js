// A browser's session: the form that asks for a key where the service wants one, and the way out.

const $ = (id) => document.getElementById(id);
const REMEMBERED = "tilewise-session"; // that there is a session: its cookie is not for scripts

/** Show the form in place of everything else. */
export function askForKey() {
  localStorage.removeItem(REMEMBERED);
  $("login").hidden = false;
  $("main").hidden = true;
  $("logout").hidden = true;
  $("trouble").hidden = true;
}

async function logIn(event) {
  event.preventDefault();
  const form = event.target;
  const key = new FormData(form).get("key");
  $("denied").textContent = "";
  try {
    const headers = { "Content-Type": "application/json" };
    const answer = await fetch(new URL("../login", import.meta.url), { method: "POST", headers, body: JSON.stringify({ key }) });
    if (!answer.ok) throw new Error((await answer.json()).error);
    localStorage.setItem(REMEMBERED, "yes");
    location.reload();
  } catch (error) {
    $("denied").textContent = error.message;
  }
  form.reset();
}

async function logOut() {
  await fetch(new URL("../logout", import.meta.url), { method: "POST" });
  localStorage.removeItem(REMEMBERED);
  location.reload();
}

$("login-form").addEventListener("submit", logIn);
$("logout").addEventListener("click", logOut);
$("logout").hidden = !localStorage.getItem(REMEMBERED);
