//! Node proxies in real namespaces, with real redirection: what an application sees of the mesh.

mod endings;
mod enrolment;
mod fixture;
mod flows;
mod hostile;
mod policy;
