;; A plugin that touches headers: requests and answers get x-plugin with what it is configured with, and a request with
;; x-forbidden is answered by it. Written by hand, so that the least that a plugin is can be read.
(module
  (import "env" "proxy_add_header_map_value"
    (func $add (param i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_replace_header_map_value"
    (func $replace (param i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_get_header_map_value"
    (func $get (param i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_get_buffer_bytes"
    (func $buffer (param i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_send_local_response"
    (func $answer (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 2)
  (data (i32.const 16) "x-plugin")
  (data (i32.const 32) "x-forbidden")
  (data (i32.const 48) "wat_forbidden")
  (data (i32.const 64) "forbidden by a plugin\n")
  ;; Where the host puts a pointer and a length.
  (global $out i32 (i32.const 0))
  (global $configuration (mut i32) (i32.const 0))
  (global $length (mut i32) (i32.const 0))
  (global $heap (mut i32) (i32.const 1024))

  (func (export "proxy_abi_version_0_2_1"))
  ;; From the beginning again when the first page is full: nothing that the host gives is kept, but for the
  ;; configuration, which is below.
  (func $allocate (export "proxy_on_memory_allocate") (param $size i32) (result i32)
    (local $at i32)
    (if (i32.gt_u (i32.add (global.get $heap) (local.get $size)) (i32.const 131072))
      (then (global.set $heap (i32.const 66560))))
    (local.set $at (global.get $heap))
    (global.set $heap (i32.add (global.get $heap) (local.get $size)))
    (local.get $at))
  (func (export "proxy_on_context_create") (param i32 i32))
  (func (export "proxy_on_configure") (param $id i32) (param $size i32) (result i32)
    (drop (call $buffer (i32.const 7) (i32.const 0) (local.get $size) (global.get $out) (i32.const 4)))
    (global.set $configuration (i32.load (global.get $out)))
    (global.set $length (i32.load (i32.const 4)))
    (global.set $heap (i32.const 66560))
    (i32.const 1))
  (func (export "proxy_on_request_headers") (param $id i32) (param $count i32) (param $end i32) (result i32)
    (if (i32.eqz (call $get (i32.const 0) (i32.const 32) (i32.const 11) (global.get $out) (i32.const 4)))
      (then
        (drop (call $answer (i32.const 403) (i32.const 48) (i32.const 13) (i32.const 64) (i32.const 22)
          (i32.const 0) (i32.const 0) (i32.const -1)))
        (return (i32.const 1))))
    (drop (call $replace (i32.const 0) (i32.const 16) (i32.const 8)
      (global.get $configuration) (global.get $length)))
    (i32.const 0))
  (func (export "proxy_on_response_headers") (param $id i32) (param $count i32) (param $end i32) (result i32)
    (drop (call $add (i32.const 2) (i32.const 16) (i32.const 8)
      (global.get $configuration) (global.get $length)))
    (i32.const 0))
)
