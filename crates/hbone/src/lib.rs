//! HBONE: HTTP/2 CONNECT tunnels, the connection pool, the copy loop.
