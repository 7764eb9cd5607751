/* tests/abi/linkspan_c99.c - linkspan.h and its defaults are plain C99, pedantic.
 *
 * Nothing runs, it compiles or it does not. scripts/abi.py holds the binary interface.
 */
#include "linkspan/linkspan.h"

/* No warning of a member that a default does not name. */
extern const linkspan_engine_options pinned_engine_options;
extern const linkspan_connect_options pinned_connect_options;
extern const linkspan_region_options pinned_region_options;
extern const linkspan_transfer_options pinned_transfer_options;
extern const linkspan_capture_options pinned_capture_options;
extern const linkspan_strides pinned_strides;
extern const linkspan_shape pinned_shape;
const linkspan_engine_options pinned_engine_options = LINKSPAN_ENGINE_OPTIONS_INIT;
const linkspan_connect_options pinned_connect_options = LINKSPAN_CONNECT_OPTIONS_INIT;
const linkspan_region_options pinned_region_options = LINKSPAN_REGION_OPTIONS_INIT;
const linkspan_transfer_options pinned_transfer_options = LINKSPAN_TRANSFER_OPTIONS_INIT;
const linkspan_capture_options pinned_capture_options = LINKSPAN_CAPTURE_OPTIONS_INIT;
const linkspan_strides pinned_strides = LINKSPAN_STRIDES_INIT;
const linkspan_shape pinned_shape = LINKSPAN_SHAPE_INIT;
