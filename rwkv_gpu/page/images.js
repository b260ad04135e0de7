// Images, made small in the browser, and sounds: shown in a message, and sent with it.
const IMAGE_TYPES = /^image\/(png|jpeg|webp|gif|bmp|avif)$/;
const LONGEST_SIDE = 1280; // pixels; vision models shrink larger images anyway
const LARGEST_IMAGE = 64 << 20; // bytes of a file
const LARGEST_PNG = 256 << 10; // bytes; a larger one is sent as JPEG
const IMAGE_URL = /^data:image\/(?:png|jpeg);base64,[A-Za-z0-9+/]+=*$/;
const LARGEST_SOUND = 16 << 20; // bytes of a file, which the browser stores with its chat
const SOUND_URL = /^data:audio\/[\w.+-]+;base64,[A-Za-z0-9+/]+=*$/;

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

// An attachment {name, audio} of an audio file.
const readSound = (name, file) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve({ name, audio: reader.result.replace(/^data:(audio\/[\w.+-]+)[^,]*,/, "data:$1;base64,") });
  reader.onerror = () => reject(new Error(`${name} cannot be read.`));
  reader.readAsDataURL(file);
});

// The attachment of an imported image or sound; null for anything else.
function importedImage(one) {
  const name = asText(one?.name);
  if (IMAGE_URL.test(asText(one?.image))) return { name, image: one.image };
  return SOUND_URL.test(asText(one?.audio)) ? { name, audio: one.audio } : null;
}

const imageParts = (node) => (node.images ?? []).map(({ image, audio }) => (audio ? { type: "audio_url", audio_url: { url: audio } } : { type: "image_url", image_url: { url: image } }));

function imageDialog({ name, image }) {
  const dialog = openDialog(name, el("img", { class: "whole", src: image, alt: name }),
    el("div", { class: "actions" }, el("button", { type: "button", onclick: () => dialog.close() }, "Close")));
}

const imageView = (one) => one.audio ? el("audio", { controls: true, src: one.audio, title: one.name, "aria-label": one.name }) : el("button", { type: "button", class: "thumb", "aria-label": `Show ${one.name}`, onclick: () => imageDialog(one) }, el("img", { src: one.image, alt: one.name }));

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
