/* A stand-in for libnvidia-ml.so.1, so that the real nvidia-ml-py bindings run on a machine without GPUs.
 *
 * It reads its GPUs from the text file named by GPUFIT_STANDIN_NVML, anew on every call: a test replaces the file
 * (atomically, by rename) and the "hardware" changes under the running reporter. With no such file nvmlInit answers
 * DRIVER_NOT_LOADED (9).
 *
 * The file: sections of "key = value" lines; "#" starts a comment line. Sizes are bytes, power is milliwatts.
 *
 *     [system]                         at most once; every key optional
 *     driver = 550.54.14
 *     nvml = 12.550.54.14
 *     cuda = 12040
 *     on_init = error:18               behaviour of a call, see below. Also on_count, on_driver, on_event_wait
 *
 *     [gpu]                            one per GPU, in index order
 *     uuid = GPU-1111...               required
 *     name = NVIDIA A100-SXM4-40GB
 *     brand = 14
 *     memory_total = 42949672960
 *     memory_used = 1048576            free is total - reserved - used
 *     memory_reserved = 0              as in the v2 answer; v1 counts it as used, as the real library does
 *     utilization = 35                 percent; memory_utilization likewise
 *     temperature = 41
 *     power = 61000                    power_limit likewise
 *     pci = 00000000:3B:00.0
 *     multi_gpu_board = 1              board_id = 0x3b00
 *     numa_node = 0
 *     mig_mode = 1                     mig_max = 7
 *     processes = 4242:1073741824,4243:unknown      pid:bytes; graphics_processes likewise
 *     ecc_corrected = 0                ecc_uncorrected = 0
 *     remapped_rows = 0,0,0,0          corrected, uncorrected, pending, failure
 *     nvlink = 00000000:AF:00.0,-      what each link leads to; "-" is a link that is down
 *     topology = GPU-2222...:10        common ancestor with another GPU, where it is not the default one
 *     xid = 31,79                      each entry becomes one Xid event per event set: append to deliver another
 *     on_memory = error:999            behaviour of one call; on_all is behaviour of every call on the handle
 *
 *     [mig]                            one per MIG device, in the order of its parent's MIG index
 *     parent = GPU-1111...             required, as is uuid = MIG-...
 *     gpu_instance = 1                 compute_instance = 0
 *     slices = 1                       (and name, memory_*, processes, on_* as above)
 *
 * A key that is absent is a metric that the device does not have: the call answers NOT_SUPPORTED (3).
 *
 * Behaviours: "error:N" returns NVML code N (3 not supported, 15 GPU lost, 999 unknown); "hang" never returns;
 * "crash" aborts the process; "slow:MS" waits and then answers as usual.
 * Call names on a GPU: all handle name uuid index memory utilization temperature power pci board brand numa mig
 * processes ecc remapped_rows nvlink topology events.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15, UNKNOWN = 999,
};
enum { MAX_SECTIONS = 160, MAX_KEYS = 48, MAX_DEVICES = 4096, XID_EVENT = 8 };
#define API __attribute__((visibility("default")))

typedef unsigned int uint;
typedef unsigned long long ull;
typedef const char *device; /* a handle is the device's interned uuid: it survives any change of the file */

/* ---- the file ---------------------------------------------------------------------------------------------- */

typedef struct { const char *kind; int n; struct { char *key, *value; } kv[MAX_KEYS]; } section;
typedef struct { char *text; int n; section sections[MAX_SECTIONS]; } state;

static void release(state **st) {
    if (*st) free((*st)->text);
    free(*st);
}
#define AUTO_STATE __attribute__((cleanup(release))) state *

static char *trim(char *s) {
    while (*s == ' ' || *s == '\t') s++;
    char *end = s + strlen(s);
    while (end > s && strchr(" \t\r", end[-1])) *--end = 0;
    return s;
}

static char *slurp(const char *path) {
    FILE *f = path ? fopen(path, "re") : NULL;
    if (!f) return NULL;
    size_t size = 0, room = 1 << 16;
    char *text = malloc(room);
    for (size_t got; (got = fread(text + size, 1, room - size - 1, f)) > 0;) {
        size += got;
        if (size + 1 >= room) text = realloc(text, room *= 2);
    }
    fclose(f);
    text[size] = 0;
    return text;
}

/* Every call parses the file for itself: nothing is shared between threads, and no change can be missed. */
static state *load(void) {
    char *text = slurp(getenv("GPUFIT_STANDIN_NVML"));
    if (!text) return NULL;
    state *st = malloc(sizeof *st);
    st->text = text;
    st->n = 0;
    for (char *save, *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        line = trim(line);
        char *eq = strchr(line, '=');
        if (*line == '#' || !*line) continue;
        if (*line == '[' && st->n < MAX_SECTIONS) {
            section *s = &st->sections[st->n++];
            s->kind = line;
            s->n = 0;
        } else if (eq && st->n) {
            section *s = &st->sections[st->n - 1];
            if (s->n == MAX_KEYS) continue;
            *eq = 0;
            s->kv[s->n].key = trim(line);
            s->kv[s->n++].value = trim(eq + 1);
        }
    }
    return st;
}

static const char *get(const section *s, const char *key) {
    for (int i = 0; s && i < s->n; i++)
        if (!strcmp(s->kv[i].key, key)) return s->kv[i].value;
    return NULL;
}

static int number(const section *s, const char *key, ull *out) {
    const char *value = get(s, key);
    if (!value) return NOT_SUPPORTED;
    *out = strtoull(value, NULL, 0);
    return SUCCESS;
}

static ull number_or(const section *s, const char *key, ull fallback) {
    ull out;
    return number(s, key, &out) ? fallback : out;
}

static int number32(const section *s, const char *key, uint *out) {
    ull wide;
    int rc = number(s, key, &wide);
    if (!rc) *out = (uint)wide;
    return rc;
}

static int text_out(const char *value, char *out, uint length) {
    if (!value) return NOT_SUPPORTED;
    if (strlen(value) >= length) return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return SUCCESS;
}

static section *nth(state *st, const char *kind, const char *parent, uint index) {
    for (int i = 0; i < st->n; i++) {
        section *s = &st->sections[i];
        if (strcmp(s->kind, kind) || (parent && strcmp(get(s, "parent") ?: "", parent))) continue;
        if (index-- == 0) return s;
    }
    return NULL;
}

static section *by_uuid(state *st, const char *uuid) {
    for (int i = 0; uuid && i < st->n; i++)
        if (!strcmp(get(&st->sections[i], "uuid") ?: "", uuid)) return &st->sections[i];
    return NULL;
}

static int is_mig(const section *s) { return !strcmp(s->kind, "[mig]"); }

/* ---- entering a call ---------------------------------------------------------------------------------------- */

static int initialized; /* a count, as in the real library */

static int behave(const section *s, const char *call) {
    char key[64];
    snprintf(key, sizeof key, "on_%s", call);
    const char *what = get(s, key);
    if (!what) return SUCCESS;
    if (!strncmp(what, "error:", 6)) return atoi(what + 6);
    if (!strncmp(what, "slow:", 5)) usleep(1000 * (useconds_t)atoi(what + 5));
    if (!strcmp(what, "crash")) abort();
    while (!strcmp(what, "hang")) pause();
    return SUCCESS;
}

static int enter_system(const char *call, state **st) {
    if (!__atomic_load_n(&initialized, __ATOMIC_SEQ_CST)) return UNINITIALIZED;
    *st = load();
    return *st ? behave(nth(*st, "[system]", NULL, 0), call) : UNKNOWN;
}

static int enter_section(const section *s, const char *call) {
    int rc = behave(s, "all");
    return rc ? rc : behave(s, call);
}

static int enter(device dev, const char *call, state **st, section **s) {
    int rc = enter_system("", st);
    if (rc) return rc;
    if (!dev) return INVALID_ARGUMENT;
    *s = by_uuid(*st, dev);
    return *s ? enter_section(*s, call) : GPU_IS_LOST; /* a device that left the file fell off the bus */
}

#define ENTER_SYSTEM(call) AUTO_STATE st = NULL; int rc = enter_system(call, &st); if (rc) return rc
#define ENTER(dev, call) \
    AUTO_STATE st = NULL; section *gpu = NULL; int rc = enter(dev, call, &st, &gpu); if (rc) return rc

static device intern(const char *uuid) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static char *known[MAX_DEVICES];
    static int n;
    device found = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n && !found; i++)
        if (!strcmp(known[i], uuid)) found = known[i];
    if (!found && n < MAX_DEVICES) found = known[n++] = strdup(uuid);
    pthread_mutex_unlock(&lock);
    return found;
}

static int handle_out(const section *s, int missing, device *out) {
    if (!s) return missing;
    int rc = enter_section(s, "handle");
    if (!rc) *out = intern(get(s, "uuid") ?: "");
    return rc;
}

/* ---- the library -------------------------------------------------------------------------------------------- */

API int nvmlInitWithFlags(uint flags) {
    (void)flags;
    AUTO_STATE st = load();
    if (!st) return DRIVER_NOT_LOADED;
    int rc = behave(nth(st, "[system]", NULL, 0), "init");
    if (!rc) __atomic_add_fetch(&initialized, 1, __ATOMIC_SEQ_CST);
    return rc;
}
API int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API int nvmlInit(void) { return nvmlInitWithFlags(0); }

API int nvmlShutdown(void) {
    if (!__atomic_load_n(&initialized, __ATOMIC_SEQ_CST)) return UNINITIALIZED;
    __atomic_sub_fetch(&initialized, 1, __ATOMIC_SEQ_CST);
    return SUCCESS;
}

API const char *nvmlErrorString(int code) {
    switch (code) {
    case SUCCESS: return "The operation was successful";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case TIMEOUT: return "Timeout";
    case GPU_IS_LOST: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

API int nvmlSystemGetDriverVersion(char *out, uint length) {
    ENTER_SYSTEM("driver");
    return text_out(get(nth(st, "[system]", NULL, 0), "driver") ?: "550.54.14", out, length);
}
API int nvmlSystemGetNVMLVersion(char *out, uint length) {
    ENTER_SYSTEM("driver");
    return text_out(get(nth(st, "[system]", NULL, 0), "nvml") ?: "12.550.54.14", out, length);
}
API int nvmlSystemGetCudaDriverVersion(int *out) {
    ENTER_SYSTEM("driver");
    *out = (int)number_or(nth(st, "[system]", NULL, 0), "cuda", 12040);
    return SUCCESS;
}
API int nvmlSystemGetCudaDriverVersion_v2(int *out) { return nvmlSystemGetCudaDriverVersion(out); }

API int nvmlDeviceGetCount_v2(uint *out) {
    ENTER_SYSTEM("count");
    for (*out = 0; nth(st, "[gpu]", NULL, *out); ++*out) {}
    return SUCCESS;
}
API int nvmlDeviceGetCount(uint *out) { return nvmlDeviceGetCount_v2(out); }

API int nvmlDeviceGetHandleByIndex_v2(uint index, device *out) {
    ENTER_SYSTEM("");
    return handle_out(nth(st, "[gpu]", NULL, index), INVALID_ARGUMENT, out);
}
API int nvmlDeviceGetHandleByUUID(const char *uuid, device *out) {
    ENTER_SYSTEM("");
    return handle_out(by_uuid(st, uuid), NOT_FOUND, out);
}
API int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, device *out) {
    ENTER_SYSTEM("");
    for (uint i = 0; nth(st, "[gpu]", NULL, i); i++)
        if (!strcasecmp(get(nth(st, "[gpu]", NULL, i), "pci") ?: "", pci))
            return handle_out(nth(st, "[gpu]", NULL, i), NOT_FOUND, out);
    return NOT_FOUND;
}

API int nvmlDeviceGetName(device dev, char *out, uint length) {
    ENTER(dev, "name");
    return text_out(get(gpu, "name"), out, length);
}
API int nvmlDeviceGetUUID(device dev, char *out, uint length) {
    ENTER(dev, "uuid");
    return text_out(get(gpu, "uuid"), out, length);
}
API int nvmlDeviceGetIndex(device dev, uint *out) {
    ENTER(dev, "index");
    const char *parent = is_mig(gpu) ? get(gpu, "parent") : NULL;
    for (*out = 0; nth(st, gpu->kind, parent, *out) != gpu; ++*out) {}
    return SUCCESS;
}
API int nvmlDeviceGetBrand(device dev, uint *out) {
    ENTER(dev, "brand");
    return number32(gpu, "brand", out);
}

typedef struct { ull total, free, used; } memory_v1;
typedef struct { uint version; ull total, reserved, free, used; } memory_v2;

API int nvmlDeviceGetMemoryInfo_v2(device dev, memory_v2 *out) {
    ENTER(dev, "memory");
    if ((rc = number(gpu, "memory_total", &out->total))) return rc;
    out->reserved = number_or(gpu, "memory_reserved", 0);
    out->used = number_or(gpu, "memory_used", 0);
    out->free = out->total - out->reserved - out->used;
    return SUCCESS;
}
API int nvmlDeviceGetMemoryInfo(device dev, memory_v1 *out) {
    memory_v2 m;
    int rc = nvmlDeviceGetMemoryInfo_v2(dev, &m);
    if (!rc) *out = (memory_v1){m.total, m.free, m.used + m.reserved};
    return rc;
}

API int nvmlDeviceGetUtilizationRates(device dev, uint out[2]) {
    ENTER(dev, "utilization");
    /* The real library has no utilization for a GPU in MIG mode, nor for its instances. */
    if (is_mig(gpu) || number_or(gpu, "mig_mode", 0)) return NOT_SUPPORTED;
    out[1] = (uint)number_or(gpu, "memory_utilization", 0);
    return number32(gpu, "utilization", &out[0]);
}
API int nvmlDeviceGetTemperature(device dev, uint sensor, uint *out) {
    ENTER(dev, "temperature");
    return sensor ? INVALID_ARGUMENT : number32(gpu, "temperature", out);
}
typedef struct { uint version, sensor; int celsius; } temperature_v1;
API int nvmlDeviceGetTemperatureV(device dev, temperature_v1 *out) {
    return nvmlDeviceGetTemperature(dev, out->sensor, (uint *)&out->celsius);
}
API int nvmlDeviceGetPowerUsage(device dev, uint *out) {
    ENTER(dev, "power");
    return number32(gpu, "power", out);
}
API int nvmlDeviceGetEnforcedPowerLimit(device dev, uint *out) {
    ENTER(dev, "power");
    return number32(gpu, "power_limit", out);
}

typedef struct { char legacy[16]; uint domain, bus, device, id, subsystem; char bus_id[32]; } pci_info;

static int pci_out(const char *pci, pci_info *out) {
    uint domain, bus, slot;
    if (!pci) return NOT_SUPPORTED;
    if (sscanf(pci, "%x:%x:%x", &domain, &bus, &slot) != 3) return UNKNOWN;
    *out = (pci_info){.domain = domain, .bus = bus, .device = slot, .id = 0x20B010DE};
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", domain & 0xFFFF, bus & 0xFF, slot & 0xFF);
    snprintf(out->bus_id, sizeof out->bus_id, "%08X:%02X:%02X.0", domain, bus, slot);
    return SUCCESS;
}
API int nvmlDeviceGetPciInfo_v3(device dev, pci_info *out) {
    ENTER(dev, "pci");
    return pci_out(get(gpu, "pci"), out);
}

API int nvmlDeviceGetMultiGpuBoard(device dev, uint *out) {
    ENTER(dev, "board");
    return number32(gpu, "multi_gpu_board", out);
}
API int nvmlDeviceGetBoardId(device dev, uint *out) {
    ENTER(dev, "board");
    return number32(gpu, "board_id", out);
}
API int nvmlDeviceGetNumaNodeId(device dev, uint *out) {
    ENTER(dev, "numa");
    return number32(gpu, "numa_node", out);
}

/* ---- MIG ---------------------------------------------------------------------------------------------------- */

API int nvmlDeviceGetMigMode(device dev, uint *current, uint *pending) {
    ENTER(dev, "mig");
    rc = number32(gpu, "mig_mode", current);
    *pending = *current;
    return rc;
}
API int nvmlDeviceGetMaxMigDeviceCount(device dev, uint *out) {
    ENTER(dev, "mig");
    *out = (uint)number_or(gpu, "mig_max", number_or(gpu, "mig_mode", 0) ? 7 : 0);
    return SUCCESS;
}
API int nvmlDeviceGetMigDeviceHandleByIndex(device dev, uint index, device *out) {
    ENTER(dev, "mig");
    if (!number_or(gpu, "mig_mode", 0)) return NOT_SUPPORTED;
    return handle_out(nth(st, "[mig]", dev, index), NOT_FOUND, out);
}
API int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device dev, device *out) {
    ENTER(dev, "mig");
    if (!is_mig(gpu)) return INVALID_ARGUMENT;
    return handle_out(by_uuid(st, get(gpu, "parent")), NOT_FOUND, out);
}
API int nvmlDeviceIsMigDeviceHandle(device dev, uint *out) {
    ENTER(dev, "mig");
    *out = (uint)is_mig(gpu);
    return SUCCESS;
}
API int nvmlDeviceGetGpuInstanceId(device dev, uint *out) {
    ENTER(dev, "mig");
    return is_mig(gpu) ? number32(gpu, "gpu_instance", out) : NOT_SUPPORTED;
}
API int nvmlDeviceGetComputeInstanceId(device dev, uint *out) {
    ENTER(dev, "mig");
    return is_mig(gpu) ? number32(gpu, "compute_instance", out) : NOT_SUPPORTED;
}
typedef struct { uint multiprocessors, shared[5], gpu_slices, compute_slices; ull memory_mb; } attributes;
API int nvmlDeviceGetAttributes_v2(device dev, attributes *out) {
    ENTER(dev, "mig");
    if (!is_mig(gpu)) return NOT_SUPPORTED;
    uint slices = (uint)number_or(gpu, "slices", 1);
    *out = (attributes){.multiprocessors = 14 * slices, .gpu_slices = slices, .compute_slices = slices,
                        .memory_mb = number_or(gpu, "memory_total", 0) >> 20};
    return SUCCESS;
}

/* ---- processes ---------------------------------------------------------------------------------------------- */

typedef struct { uint pid; ull used; uint gpu_instance, compute_instance; } process_v2;
typedef struct { uint pid; ull used; } process_v1;
#define NO_INSTANCE 0xFFFFFFFFu

static void append_processes(const section *s, const char *key, process_v2 *out, uint room, uint *n) {
    for (const char *p = get(s, key); p && *p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL, ++*n) {
        const char *colon = strchr(p, ':');
        if (!out || *n >= room) continue;
        out[*n] = (process_v2){
            .pid = (uint)strtoul(p, NULL, 0),
            .used = colon && strncmp(colon + 1, "unknown", 7) ? strtoull(colon + 1, NULL, 0) : ~0ULL,
            .gpu_instance = (uint)number_or(s, "gpu_instance", NO_INSTANCE),
            .compute_instance = (uint)number_or(s, "compute_instance", NO_INSTANCE),
        };
    }
}

static int processes(device dev, const char *key, uint *count, process_v2 *out) {
    ENTER(dev, "processes");
    uint n = 0, room = *count;
    append_processes(gpu, key, out, room, &n);
    /* A parent lists what runs on its instances too, each with the instance's ids. */
    for (uint i = 0; !is_mig(gpu) && nth(st, "[mig]", dev, i); i++)
        append_processes(nth(st, "[mig]", dev, i), key, out, room, &n);
    *count = n;
    return n > room || (n && !out) ? INSUFFICIENT_SIZE : SUCCESS;
}

API int nvmlDeviceGetComputeRunningProcesses_v3(device d, uint *n, process_v2 *out) {
    return processes(d, "processes", n, out);
}
API int nvmlDeviceGetComputeRunningProcesses_v2(device d, uint *n, process_v2 *out) {
    return processes(d, "processes", n, out);
}
API int nvmlDeviceGetGraphicsRunningProcesses_v3(device d, uint *n, process_v2 *out) {
    return processes(d, "graphics_processes", n, out);
}
API int nvmlDeviceGetGraphicsRunningProcesses_v2(device d, uint *n, process_v2 *out) {
    return processes(d, "graphics_processes", n, out);
}
API int nvmlDeviceGetMPSComputeRunningProcesses_v3(device d, uint *n, process_v2 *out) {
    return processes(d, "mps_processes", n, out);
}
API int nvmlDeviceGetComputeRunningProcesses(device dev, uint *count, process_v1 *out) {
    process_v2 wide[256];
    uint n = out && *count < 256 ? *count : 256;
    if (!out) n = 0;
    int rc = processes(dev, "processes", &n, out ? wide : NULL);
    for (uint i = 0; !rc && out && i < n; i++) out[i] = (process_v1){wide[i].pid, wide[i].used};
    *count = n;
    return rc;
}

/* ---- health ------------------------------------------------------------------------------------------------- */

API int nvmlDeviceGetEccMode(device dev, uint *current, uint *pending) {
    ENTER(dev, "ecc");
    if (!get(gpu, "ecc_uncorrected")) return NOT_SUPPORTED;
    *current = *pending = 1;
    return SUCCESS;
}
API int nvmlDeviceGetTotalEccErrors(device dev, uint type, uint counter, ull *out) {
    (void)counter;
    ENTER(dev, "ecc");
    return number(gpu, type ? "ecc_uncorrected" : "ecc_corrected", out);
}
API int nvmlDeviceGetRemappedRows(device dev, uint *corrected, uint *uncorrected, uint *pending, uint *failure) {
    ENTER(dev, "remapped_rows");
    const char *rows = get(gpu, "remapped_rows");
    if (!rows) return NOT_SUPPORTED;
    return sscanf(rows, "%u,%u,%u,%u", corrected, uncorrected, pending, failure) == 4 ? SUCCESS : UNKNOWN;
}

/* ---- how GPUs hang together --------------------------------------------------------------------------------- */

static const char *nth_item(const char *list, uint index) {
    for (; list && index; index--) list = strchr(list, ',') ? strchr(list, ',') + 1 : NULL;
    return list;
}
API int nvmlDeviceGetNvLinkState(device dev, uint link, uint *out) {
    ENTER(dev, "nvlink");
    if (!get(gpu, "nvlink")) return NOT_SUPPORTED;
    const char *item = nth_item(get(gpu, "nvlink"), link);
    if (!item) return INVALID_ARGUMENT;
    *out = *item != '-';
    return SUCCESS;
}
API int nvmlDeviceGetNvLinkRemotePciInfo_v2(device dev, uint link, pci_info *out) {
    ENTER(dev, "nvlink");
    if (!get(gpu, "nvlink")) return NOT_SUPPORTED;
    const char *item = nth_item(get(gpu, "nvlink"), link);
    if (!item) return INVALID_ARGUMENT;
    return *item == '-' ? NOT_SUPPORTED : pci_out(item, out);
}
API int nvmlDeviceGetTopologyCommonAncestor(device one, device two, uint *out) {
    ENTER(one, "topology");
    section *other = by_uuid(st, two);
    if (!other) return GPU_IS_LOST;
    const char *given = get(gpu, "topology"), *at = given ? strstr(given, two) : NULL;
    int one_board = number_or(gpu, "multi_gpu_board", 0) && number_or(other, "multi_gpu_board", 0)
        && number_or(gpu, "board_id", 0) == number_or(other, "board_id", 1);
    int one_numa = number_or(gpu, "numa_node", 0) == number_or(other, "numa_node", 0);
    if (at && at[strlen(two)] == ':') *out = (uint)atoi(at + strlen(two) + 1);
    else if (one_board) *out = 10;
    else *out = one_numa ? 40 : 50;
    return SUCCESS;
}

/* ---- events ------------------------------------------------------------------------------------------------- */

typedef struct { int n; struct { device dev; uint delivered; } of[64]; } event_set;
typedef struct { device dev; ull type, data; uint gpu_instance, compute_instance; } event_data;

API int nvmlEventSetCreate(event_set **out) {
    ENTER_SYSTEM("");
    *out = calloc(1, sizeof **out);
    return SUCCESS;
}
API int nvmlEventSetFree(event_set *set) {
    free(set);
    return SUCCESS;
}
API int nvmlDeviceGetSupportedEventTypes(device dev, ull *out) {
    ENTER(dev, "events");
    *out = XID_EVENT;
    return SUCCESS;
}
API int nvmlDeviceRegisterEvents(device dev, ull types, event_set *set) {
    ENTER(dev, "events");
    if (is_mig(gpu)) return NOT_SUPPORTED;
    if ((types & XID_EVENT) && set->n < 64) set->of[set->n++].dev = dev;
    return SUCCESS;
}

static int next_event(event_set *set, event_data *out) {
    ENTER_SYSTEM("event_wait");
    for (int i = 0; i < set->n; i++) {
        const char *xids = get(by_uuid(st, set->of[i].dev), "xid");
        const char *item = xids && *xids ? nth_item(xids, set->of[i].delivered) : NULL;
        if (!item || !*item) continue;
        set->of[i].delivered++;
        *out = (event_data){set->of[i].dev, XID_EVENT, strtoull(item, NULL, 0), NO_INSTANCE, NO_INSTANCE};
        return SUCCESS;
    }
    return TIMEOUT;
}

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

API int nvmlEventSetWait_v2(event_set *set, event_data *out, uint timeout_ms) {
    for (double end = now_ms() + timeout_ms;; usleep(10000)) {
        int rc = next_event(set, out);
        if (rc != TIMEOUT || now_ms() >= end) return rc;
    }
}
