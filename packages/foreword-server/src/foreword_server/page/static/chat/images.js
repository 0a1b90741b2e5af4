/** Images of a prompt: chosen, dropped or pasted, shown small, and sent as data URLs. */

import { byId, count, el } from "../dom.js";

/** The images that go with the next prompt. `onerror` shows an error. */
export class Images {
  constructor(prompt, onerror) {
    [this.list, this.button, this.onerror] = [byId("images"), byId("attach"), onerror];
    this.urls = [];
    this.button.querySelector("input").addEventListener("change", (event) => {
      this.add(event.target.files);
      event.target.value = "";
    });
    prompt.addEventListener("paste", (event) => {
      const files = [...event.clipboardData.files].filter(isImage);
      if (!files.length) return;
      event.preventDefault();
      this.add(files);
    });
  }

  /** Show the button if the model reads images. */
  describe(info) {
    this.served = info.images;
    this.button.hidden = !info.images;
  }

  /** Add files to the next prompt. */
  async add(files) {
    if (!this.served) return this.onerror(new Error("cannot send an image: this model reads text only"));
    const urls = await Promise.all([...files].map(dataUrl));
    this.urls.push(...urls.filter((url) => url.startsWith("data:image/")));
    this._draw();
  }

  /** Return the images, and begin a new prompt. */
  take() {
    const taken = this.urls;
    this.urls = [];
    this._draw();
    return taken;
  }

  /** Go with the next prompt in place of those that were chosen. */
  put(urls) {
    this.urls = [...urls];
    this._draw();
  }

  _draw() {
    const items = this.urls.map((url, at) => {
      const remove = () => {
        this.urls.splice(at, 1);
        this._draw();
      };
      const name = `Remove image ${at + 1}`;
      return el("li", {}, picture(url, at), el("button", { type: "button", "aria-label": name, text: "×", onclick: remove }));
    });
    this.list.replaceChildren(...items);
    this.list.hidden = !items.length;
    if (items.length) byId("status").textContent = `${count(items.length, "image")} with the next prompt`;
  }
}

/** Return whether a file is an image, by its type. */
export const isImage = (file) => file.type.startsWith("image/");

/** Return an image of a prompt. */
export const picture = (url, at) => el("img", { src: url, alt: `Image ${at + 1} of the prompt` });

/** Return the content of a message: its text, after its images if there are any. */
export function content(text, urls) {
  if (!urls.length) return text;
  return [...urls.map((url) => ({ type: "image_url", image_url: { url } })), { type: "text", text }];
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
