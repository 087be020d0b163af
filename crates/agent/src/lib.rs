//! The node agent: enrols pods, sets their redirection, serves ZDS.
