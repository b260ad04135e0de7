// The layer has keys and values of its own, and writes them to their pages.
const OWN_KEYS = true;
