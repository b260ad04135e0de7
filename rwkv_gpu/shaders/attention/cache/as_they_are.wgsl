// Blocks of 32 dims are stored as they are.
const ROTATED = false;

fn rotated(x: array<vec4f, 8>) -> array<vec4f, 8> { return x; }
