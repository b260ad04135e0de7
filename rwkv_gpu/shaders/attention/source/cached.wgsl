// Another layer has written the keys and values: this one has queries only.
const OWN_KEYS = false;
