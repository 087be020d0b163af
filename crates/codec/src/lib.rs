//! Small wire formats parsed from peers' bytes: CONNECT authority, baggage, Forwarded, PROXY v2. Pure.
