// F16: weight = q.      x: 64 bytes a run, halves in pairs
const RUN = 32u;

fn floats(four: Four) -> vec4f { return vec4f(unpack2x16float(four.x), unpack2x16float(four.y)); }
