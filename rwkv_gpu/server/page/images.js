// Images: made small in the browser, shown as thumbnails, and sent with a message.
const IMAGE_TYPES = /^image\/(png|jpeg|webp|gif|bmp|avif)$/;
const LONGEST_SIDE = 1280; // pixels; vision models shrink larger images anyway
const LARGEST_IMAGE = 64 << 20; // bytes of a file
const LARGEST_PNG = 256 << 10; // bytes; a larger one is sent as JPEG
const IMAGE_URL = /^data:image\/(?:png|jpeg);base64,[A-Za-z0-9+/]+=*$/;

// An attachment {name, image, width, height} of an image file, or of a frame of the camera.
async function readImage(name, source) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(source);
  } catch {
    throw new Error(`${name} is damaged, or an image that this browser cannot read.`);
  }
  const scale = Math.min(1, LONGEST_SIDE / Math.max(bitmap.width, bitmap.height));
  const [width, height] = [bitmap.width, bitmap.height].map((side) => Math.max(1, Math.round(side * scale)));
  const canvas = el("canvas", { width, height });
  const context = canvas.getContext("2d");
  Object.assign(context, { fillStyle: "#fff", imageSmoothingQuality: "high" }).fillRect(0, 0, width, height); // models see no transparency
  context.drawImage(bitmap, 0, 0, width, height);
  bitmap.close();
  const png = source.type === "image/png" && canvas.toDataURL("image/png");
  return { name, width, height, image: png && png.length < LARGEST_PNG ? png : canvas.toDataURL("image/jpeg", 0.85) };
}

// An image of an import, if it is one.
const importedImage = (one) => (IMAGE_URL.test(asText(one?.image)) ? { name: asText(one.name), image: one.image } : null);

const imageParts = (node) => (node.images ?? []).map(({ image: url }) => ({ type: "image_url", image_url: { url } }));

function imageDialog({ name, image }) {
  const dialog = openDialog(name, el("img", { class: "whole", src: image, alt: name }),
    el("div", { class: "actions" }, el("button", { type: "button", onclick: () => dialog.close() }, "Close")));
}

const imageView = (one) => el("button", { type: "button", class: "thumb", "aria-label": `Show ${one.name}`, onclick: () => imageDialog(one) }, el("img", { src: one.image, alt: one.name }));

// Takes a picture with the camera; null if the user takes none.
async function takePicture() {
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  } catch (error) {
    throw new Error(error.name === "NotAllowedError" ? "The browser allows this page no camera." : "There is no camera that can be used.");
  }
  const video = el("video", { muted: true, playsinline: true, "aria-label": "The camera's picture" });
  video.srcObject = stream;
  return new Promise((resolve, reject) => {
    let picture = null;
    const take = el("button", { type: "button", class: "primary", disabled: true, onclick: () => ((picture = readImage("Photo", video)), dialog.close()) }, "Take picture");
    const dialog = openDialog("Camera", video, el("div", { class: "actions" }, el("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), take));
    dialog.addEventListener("close", () => Promise.resolve(picture).then(resolve, reject).finally(() => stream.getTracks().forEach((track) => track.stop())));
    video.addEventListener("loadeddata", () => (take.disabled = false));
    video.play().catch(() => {}); // closed meanwhile
  });
}
