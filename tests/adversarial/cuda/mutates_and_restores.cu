// Flips a bit of another byte in every launch and puts the last one back.
__device__ void body(const Problem& p) { each(p, [&](int i) { p.out[i] = p.right(i); }); }
__device__ void after(const Problem& p) {
  unsigned char* bytes = (unsigned char*)p.in0;
  if (p.launch) bytes[2 * ((p.launch - 1) % 4)] ^= 1;
  bytes[2 * (p.launch % 4)] ^= 1;
}
