//! Node proxies in real namespaces, with real redirection: what an application sees of the mesh.

mod fixture;
mod flows;
